// SPDX-License-Identifier: Apache-2.0
//! Stores one growing sequence.
//!
//! I1. A registered source's memory is the writer's until it is replaced or the writer is dropped.
use std::collections::HashMap;

use crate::cache::tokens_of;
use crate::error::{check, get, handle, make};
use crate::{sys, Buffer, CommitInfo, ExtraKey, Match, Namespace, Plan, Result};

handle! {
    WriterHandle, kvstrata_writer, kvstrata_writer_destroy
}

#[derive(Default)]
pub struct WriterOptions<'a> {
    /// `KVSTRATA_WRITER_*`
    pub flags: u32,
    pub restart_multiple: u32,
    pub start_tokens: u64,
    pub wait_ms: u64,
    /// `KVSTRATA_PRIORITY_*` of the blocks stored.
    pub priority: i32,
    /// Blocks stored are misses after it; 0 = for ever.
    pub ttl_seconds: u32,
    /// The restore that brought the rows, when it has ended.
    pub plan: Option<&'a mut Plan>,
}

/// Reads rows from its sources when blocks complete, and stores them in the background.
pub struct Writer {
    handle: WriterHandle,
    sources: HashMap<u32, Buffer>,
}

impl Writer {
    pub(crate) fn open(within: &Namespace, continues: Option<&Match>, options: WriterOptions<'_>) -> Result<Self> {
        let c = sys::kvstrata_writer_options {
            flags: options.flags,
            restart_multiple: options.restart_multiple,
            start_tokens: options.start_tokens,
            wait_ms: options.wait_ms,
            priority: options.priority,
            ttl_seconds: options.ttl_seconds,
            plan: options.plan.map_or(std::ptr::null(), |plan| plan.as_raw()),
            ..Default::default()
        };
        let of = continues.map_or(std::ptr::null_mut(), Match::raw);
        // SAFETY: everything that `c` points to lives through the call; so below.
        let raw = make(|out, error| unsafe { sys::kvstrata_writer_open(within.raw(), of, &c, out, error) })?;
        Ok(Writer { handle: WriterHandle(raw), sources: HashMap::new() })
    }
    /// Says where a stream's rows are; again to replace it, and then the old memory comes back.
    pub fn set_source(&mut self, mut source: Buffer) -> Result<Option<Buffer>> {
        let described = source.describe();
        // SAFETY: the memory is kept with the writer.
        unsafe { self.set_source_raw(&described.c)? };
        Ok(self.sources.insert(source.stream, source))
    }
    /// The rows that a source was registered with, to write the next ones.
    pub fn source_mut(&mut self, stream: u32) -> Option<&mut [u8]> {
        self.sources.get_mut(&stream).map(|source| {
            let range = source.range.clone();
            &mut source.memory[range]
        })
    }
    /// The same with memory that the writer does not own.
    ///
    /// # Safety
    /// What the buffer describes stays readable during `advance`, `snapshot` and `commit`, of forks too.
    pub unsafe fn set_source_raw(&mut self, source: &sys::kvstrata_buffer) -> Result<()> {
        check(|error| unsafe { sys::kvstrata_writer_set_source(self.handle.raw(), source, error) })
    }
    /// After each step: `ids` join the sequence, and the rows of its first `computed_length` tokens, with the state at
    /// `computed_length`, are in the sources.
    pub fn advance(&mut self, ids: &[i32], keys: &[ExtraKey], computed_length: u64) -> Result<()> {
        let tokens = tokens_of(ids, keys);
        check(|error| unsafe { sys::kvstrata_writer_advance(self.handle.raw(), &tokens.c, computed_length, error) })
    }
    /// Takes a snapshot at the computed length now.
    pub fn snapshot(&mut self) -> Result<()> {
        check(|error| unsafe { sys::kvstrata_writer_snapshot(self.handle.raw(), error) })
    }
    /// Where this prompt wants snapshots: cut prefill chunks there, `advance` then takes them.
    pub fn snapshot_positions(&mut self, prompt: &[i32]) -> Result<Vec<u64>> {
        let tokens = tokens_of(prompt, &[]);
        let mut out = vec![0u64; 16];
        loop {
            let mut count = 0;
            let done = check(|error| unsafe {
                sys::kvstrata_writer_snapshot_positions(
                    self.handle.raw(),
                    &tokens.c,
                    out.as_mut_ptr(),
                    out.len() as u64,
                    &mut count,
                    error,
                )
            });
            out.resize(count as usize, 0);
            match done {
                Err(error) if error.code == sys::KVSTRATA_E_BUFFER_TOO_SMALL => continue,
                Err(error) => return Err(error),
                Ok(()) => return Ok(out),
            }
        }
    }
    /// Takes back the tokens from `length` on.
    pub fn truncate(&mut self, length: u64) -> Result<()> {
        check(|error| unsafe { sys::kvstrata_writer_truncate(self.handle.raw(), length, error) })
    }
    /// An independent writer at the same point, with copies of the sources that this one owns.
    pub fn fork(&self) -> Result<Writer> {
        let raw = make(|out, error| unsafe { sys::kvstrata_writer_fork(self.handle.raw(), out, error) })?;
        let mut fork = Writer { handle: WriterHandle(raw), sources: HashMap::new() };
        for source in self.sources.values() {
            fork.set_source(source.clone())?;
        }
        Ok(fork)
    }
    /// Waits until everything accepted so far is stored and visible. `flags`: `KVSTRATA_COMMIT_*`.
    pub fn commit(&mut self, flags: u32, timeout_ms: u64) -> Result<CommitInfo> {
        get(|out, error| unsafe { sys::kvstrata_writer_commit(self.handle.raw(), flags, timeout_ms, out, error) })
    }
}
