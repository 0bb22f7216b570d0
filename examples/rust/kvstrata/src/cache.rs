// SPDX-License-Identifier: Apache-2.0
//! Cache, namespace and match.
use std::ffi::{c_void, CString};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{c_string, check, get, handle, make};
use crate::{
    storage, sys, CloseInfo, Error, Event, Layout, MatchInfo, NamespaceInfo, PinInfo, Plan, PlanOptions, Result, Stats,
    Storage, VerifyInfo, Writer, WriterOptions,
};

handle! {
    /// One store. Dropping it closes it.
    Cache, kvstrata_cache, kvstrata_cache_destroy
}
handle! {
    /// Identity and layout inside a cache: the wall between models and tenants.
    Namespace, kvstrata_namespace, kvstrata_namespace_destroy
}
handle! {
    /// One lookup's result and the lease on what it promises; dropping it ends the lease.
    Match, kvstrata_match, kvstrata_match_destroy
}

handle! {
    /// A match's rows in memory: valid and unchanged until it is dropped, whatever becomes of match and cache.
    Pin, kvstrata_pin, kvstrata_pin_destroy
}

// SAFETY: "internally synchronised" (c_api.h, section 1).
unsafe impl Sync for Cache {}
unsafe impl Sync for Namespace {}
// SAFETY: "immutable, any thread at any time" (the same).
unsafe impl Sync for Pin {}

/// Consecutive rows of one stream where they lie.
#[derive(Clone, Copy, Debug)]
pub struct PinRange<'a> {
    pub stream: u32,
    pub first_row: u64,
    /// 0: the stream is optional, and these blocks were stored without it.
    pub rows: u64,
    /// The rows back to back, of any alignment.
    pub bytes: &'a [u8],
}

#[derive(Clone, Default)]
pub struct CacheOptions {
    /// A directory, made when missing; None and no storage: in memory only.
    pub path: Option<PathBuf>,
    pub storage: Option<Arc<dyn Storage>>,
    pub read_only: bool,
    /// Required unless read_only.
    pub capacity_bytes: u64,
    pub snapshot_bytes: u64,
    pub staging_bytes: u64,
    pub lease_bytes: u64,
    pub lease_ms: u64,
    pub io_timeout_ms: u64,
    pub io_threads: u32,
    pub max_blocks: u32,
    /// `KVSTRATA_EVICT_*`
    pub eviction_policy: i32,
    /// `KVSTRATA_ADMIT_*`
    pub admission: i32,
    pub high_percent: u32,
    pub low_percent: u32,
    pub ghost_bytes: u64,
    pub keep_free_bytes: u64,
    /// Of the store at `path`, that this process writes; `u64::MAX`: the lowest that is free.
    pub lane: u64,
    /// A tier of memory over the store at `path`, or over `storage`.
    pub memory_bytes: u64,
    pub memory_dirty_bytes: u64,
    /// `KVSTRATA_WRITE_*`
    pub memory_write: i32,
    /// `KVSTRATA_PROMOTE_*`
    pub memory_promotion: i32,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceOptions {
    pub must_exist: bool,
    pub snapshot_policy: u32,
    pub snapshot_every_tokens: u32,
    /// `KVSTRATA_COMPRESS_*`
    pub compress: u32,
    /// `KVSTRATA_PACK_*`
    pub pack: u32,
}

/// What besides its token id makes a position's rows what they are.
#[derive(Clone, Debug)]
pub struct ExtraKey {
    pub position: u64,
    pub kind: u32,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct LookupOptions {
    /// `KVSTRATA_LOOKUP_*`
    pub flags: u32,
    pub held_tokens: u64,
    /// Bits `1 << KVSTRATA_MODE_*`; 0 = snapshot only.
    pub allowed_modes: u32,
    pub restart_multiple: u32,
    pub min_gain_tokens: u64,
    pub prefill_tokens_per_second: f64,
    pub storage_bytes_per_second: f64,
    pub lease_ms: u64,
}

/// The tokens of a call, with the array that they point to.
pub(crate) struct Tokens {
    pub c: sys::kvstrata_tokens,
    _keys: Vec<sys::kvstrata_extra_key>,
}

pub(crate) fn tokens_of(ids: &[i32], keys: &[ExtraKey]) -> Tokens {
    let keys: Vec<sys::kvstrata_extra_key> = keys
        .iter()
        .map(|key| sys::kvstrata_extra_key {
            r#type: key.kind,
            position: key.position,
            bytes: key.bytes.as_ptr().cast(),
            size: key.bytes.len() as u64,
            ..Default::default()
        })
        .collect();
    let c = sys::kvstrata_tokens {
        ids: ids.as_ptr(),
        count: ids.len() as u64,
        extra_keys: keys.as_ptr(),
        extra_key_count: keys.len() as u64,
        ..Default::default()
    };
    Tokens { c, _keys: keys }
}

impl Cache {
    /// Opens or makes a store and rebuilds its index.
    pub fn open(options: &CacheOptions) -> Result<Self> {
        let path = match &options.path {
            Some(path) => Some(
                CString::new(path.as_os_str().as_bytes())
                    .map_err(|_| Error::with(sys::KVSTRATA_E_INVALID_ARGUMENT, "path", "a 0 byte within a path"))?,
            ),
            None => None,
        };
        let table = options.storage.clone().map(storage::table_of);
        let c = sys::kvstrata_cache_options {
            flags: if options.read_only { sys::KVSTRATA_CACHE_READ_ONLY as u32 } else { 0 },
            path: path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr()),
            storage: table.as_ref().map_or(std::ptr::null(), |table| table),
            capacity_bytes: options.capacity_bytes,
            snapshot_bytes: options.snapshot_bytes,
            staging_bytes: options.staging_bytes,
            lease_bytes: options.lease_bytes,
            lease_ms: options.lease_ms,
            io_timeout_ms: options.io_timeout_ms,
            io_threads: options.io_threads,
            max_blocks: options.max_blocks,
            eviction_policy: options.eviction_policy,
            admission: options.admission,
            high_percent: options.high_percent,
            low_percent: options.low_percent,
            ghost_bytes: options.ghost_bytes,
            keep_free_bytes: options.keep_free_bytes,
            lane: options.lane,
            memory_bytes: options.memory_bytes,
            memory_dirty_bytes: options.memory_dirty_bytes,
            memory_write: options.memory_write,
            memory_promotion: options.memory_promotion,
            ..Default::default()
        };
        // SAFETY: everything that `c` points to lives through the call; so below.
        let opened = make(|out, error| unsafe { sys::kvstrata_cache_open(&c, out, error) });
        if let (Err(_), Some(table)) = (&opened, &table) {
            storage::take_back(table);
        }
        opened.map(Self)
    }
    /// Drains accepted writes; what was made from the cache answers KVSTRATA_E_INVALID_STATE afterwards.
    pub fn close(&self, timeout_ms: u64) -> Result<CloseInfo> {
        get(|out, error| unsafe { sys::kvstrata_cache_close(self.raw(), timeout_ms, out, error) })
    }
    /// Opens the namespace of this identity and layout, or makes it.
    pub fn namespace(
        &self,
        layout: &Layout,
        identity: &[(&str, &[u8])],
        options: NamespaceOptions,
    ) -> Result<Namespace> {
        let mut names = Vec::new();
        for (name, _) in identity {
            names.push(c_string(name, "identity")?);
        }
        let fields: Vec<sys::kvstrata_identity_field> = identity
            .iter()
            .zip(&names)
            .map(|((_, bytes), name)| sys::kvstrata_identity_field {
                name: name.as_ptr(),
                bytes: bytes.as_ptr().cast(),
                size: bytes.len() as u64,
                ..Default::default()
            })
            .collect();
        let c = sys::kvstrata_namespace_options {
            flags: if options.must_exist { sys::KVSTRATA_NAMESPACE_MUST_EXIST as u32 } else { 0 },
            layout: layout.raw(),
            fields: fields.as_ptr(),
            field_count: fields.len() as u64,
            snapshot_policy: options.snapshot_policy,
            snapshot_every_tokens: options.snapshot_every_tokens,
            compress: options.compress,
            pack: options.pack,
            ..Default::default()
        };
        make(|out, error| unsafe { sys::kvstrata_namespace_open(self.raw(), &c, out, error) }).map(Namespace)
    }
    pub fn stats(&self) -> Result<Stats> {
        get(|out, error| unsafe { sys::kvstrata_cache_stats(self.raw(), out, error) })
    }
    /// The events from `from` on that are still held, and the sequence to ask for next.
    pub fn events(&self, from: u64, at_most: usize) -> Result<(Vec<Event>, u64)> {
        let mut events = vec![Event::default(); at_most];
        let (mut count, mut next) = (0, 0);
        check(|error| unsafe {
            sys::kvstrata_cache_events(
                self.raw(),
                from,
                events.as_mut_ptr(),
                at_most as u64,
                std::mem::size_of::<Event>() as u64,
                &mut count,
                &mut next,
                error,
            )
        })?;
        events.truncate(count as usize);
        Ok((events, next))
    }
    /// Reads and checks every record. `progress(done, total)` returns false to end it with KVSTRATA_E_CANCELLED.
    pub fn verify<F: FnMut(u64, u64) -> bool + Send>(&self, mut progress: F) -> Result<VerifyInfo> {
        get(|out, error| unsafe {
            sys::kvstrata_cache_verify(self.raw(), Some(on_progress::<F>), (&mut progress as *mut F).cast(), out, error)
        })
    }
    /// Evicts until at most `target_bytes` are held or only leased records are left; gives the bytes held.
    pub fn trim(&self, target_bytes: u64) -> Result<u64> {
        get(|out, error| unsafe { sys::kvstrata_cache_trim(self.raw(), target_bytes, out, error) })
    }
    pub fn sync(&self) -> Result<()> {
        check(|error| unsafe { sys::kvstrata_cache_sync(self.raw(), error) })
    }
    pub fn purge_foreign(&self) -> Result<u64> {
        get(|out, error| unsafe { sys::kvstrata_cache_purge_foreign(self.raw(), out, error) })
    }
}

unsafe extern "C" fn on_progress<F: FnMut(u64, u64) -> bool>(user: *mut c_void, done: u64, total: u64) -> i32 {
    // SAFETY: `user` is verify's closure, which outlives the call; one progress call at a time.
    let goes_on = catch_unwind(AssertUnwindSafe(|| unsafe { (*user.cast::<F>())(done, total) }));
    i32::from(!goes_on.unwrap_or(false))
}

impl Namespace {
    /// Longest stored prefix; always a match, also for a miss. Pure memory, no I/O.
    pub fn lookup(&self, ids: &[i32], options: LookupOptions) -> Result<Match> {
        self.lookup_with_keys(ids, &[], options)
    }
    pub fn lookup_with_keys(&self, ids: &[i32], keys: &[ExtraKey], options: LookupOptions) -> Result<Match> {
        let tokens = tokens_of(ids, keys);
        let c = sys::kvstrata_lookup_options {
            flags: options.flags,
            held_tokens: options.held_tokens,
            allowed_modes: options.allowed_modes,
            restart_multiple: options.restart_multiple,
            min_gain_tokens: options.min_gain_tokens,
            prefill_tokens_per_second: options.prefill_tokens_per_second,
            storage_bytes_per_second: options.storage_bytes_per_second,
            lease_ms: options.lease_ms,
            ..Default::default()
        };
        make(|out, error| unsafe { sys::kvstrata_lookup(self.raw(), &tokens.c, &c, out, error) }).map(Match)
    }
    /// A writer for one sequence; with a match it goes on with that prompt.
    pub fn writer(&self, continues: Option<&Match>, options: WriterOptions<'_>) -> Result<Writer> {
        Writer::open(self, continues, options)
    }
    pub fn info(&self) -> Result<NamespaceInfo> {
        get(|out, error| unsafe { sys::kvstrata_namespace_get_info(self.raw(), out, error) })
    }
    /// Forgets everything stored here, durably where the storage can.
    pub fn drop_stored(&self) -> Result<()> {
        check(|error| unsafe { sys::kvstrata_namespace_drop(self.raw(), error) })
    }
}

impl Match {
    pub fn info(&self) -> Result<MatchInfo> {
        get(|out, error| unsafe { sys::kvstrata_match_get_info(self.raw(), out, error) })
    }
    /// Prolongs the lease to `lease_ms` from now; 0 = the cache's default.
    pub fn renew(&mut self, lease_ms: u64) -> Result<()> {
        check(|error| unsafe { sys::kvstrata_match_renew(self.raw(), lease_ms, error) })
    }
    /// Plans anew with usable_tokens <= `max_usable_tokens`.
    pub fn limit(&mut self, max_usable_tokens: u64) -> Result<()> {
        check(|error| unsafe { sys::kvstrata_match_limit(self.raw(), max_usable_tokens, error) })
    }
    /// Position of the first token that differs from the nearest stored continuation. Reads storage.
    pub fn first_difference(&mut self) -> Result<Option<u64>> {
        let position: u64 = get(|out, error| unsafe { sys::kvstrata_match_first_difference(self.raw(), out, error) })?;
        Ok(Some(position).filter(|position| *position != u64::MAX))
    }
    /// The rows of the leading blocks of what a plan would read, as far as they are in memory: no I/O, no copy.
    pub fn pin(&self) -> Result<Pin> {
        make(|out, error| unsafe { sys::kvstrata_match_pin(self.raw(), out, error) }).map(Pin)
    }
    /// A restore of what this match promises; the plan keeps the lease.
    pub fn plan(&mut self, options: PlanOptions) -> Result<Plan> {
        Plan::create(self, options)
    }
}

impl Pin {
    pub fn info(&self) -> Result<PinInfo> {
        get(|out, error| unsafe { sys::kvstrata_pin_get_info(self.raw(), out, error) })
    }
    /// Range `index` of `range_count`, in the order of the blocks, and for the same blocks by layer.
    pub fn range(&self, index: u64) -> Result<PinRange<'_>> {
        let range: sys::kvstrata_pin_range =
            get(|out, error| unsafe { sys::kvstrata_pin_get_range(self.raw(), index, out, error) })?;
        let bytes = if range.data.is_null() {
            &[]
        } else {
            // SAFETY: so many bytes lie there, valid and unchanged until the C pin is destroyed: not while `self` lives.
            unsafe { std::slice::from_raw_parts(range.data.cast::<u8>(), range.bytes as usize) }
        };
        Ok(PinRange { stream: range.stream, first_row: range.first_row, rows: range.rows, bytes })
    }
}

/// Limits the matches of one prompt, one per rank, to the largest length that all of them reach.
pub fn agree(matches: &mut [&mut Match]) -> Result<u64> {
    let raw: Vec<*mut sys::kvstrata_match> = matches.iter().map(|one| one.raw()).collect();
    get(|out, error| unsafe { sys::kvstrata_match_agree(raw.as_ptr(), raw.len() as u64, out, error) })
}
