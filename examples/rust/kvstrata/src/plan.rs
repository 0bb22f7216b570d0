// SPDX-License-Identifier: Apache-2.0
//! Restores.
//!
//! I1. The destinations of a started plan are the plan's, and come back only when the C plan has been destroyed: a plan
//!     that is leaked leaks them too, so the library never writes to memory that somebody else has.
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;

use crate::error::{check, get, make};
use crate::{sys, Buffer, Match, PlanResult, Result, Segment};

type Signal = Box<dyn Fn(u64, i32) -> bool + Send + Sync>;

#[derive(Default)]
pub struct PlanOptions {
    /// `KVSTRATA_PLAN_EARLY_RELEASE`
    pub flags: u32,
    /// Only these streams; empty = all.
    pub streams: Vec<u32>,
    /// Of the whole restore; 0 = none but io_timeout_ms.
    pub timeout_ms: u64,
    /// `signal(layers_ready, state)`, on a thread of the library; may only signal. False cancels.
    pub signal: Option<Signal>,
}

/// One restore: start, wait, take the destinations back, then run the tokens from replay_from on. Dropping a running
/// plan cancels it.
pub struct Plan {
    raw: NonNull<sys::kvstrata_plan>,
    segments: Vec<Segment>,
    destinations: Vec<Buffer>,
    // Boxed twice: a trait object's address has two words, the C API's one. Outlives the C plan.
    _signal: Option<Box<Signal>>,
}

// SAFETY: handles may move between threads, and the destinations are plain memory.
unsafe impl Send for Plan {}
// SAFETY: "poll, wait and cancel from any thread": these, and what reads the plan's own memory, take &self; the rest
// takes &mut self.
unsafe impl Sync for Plan {}

impl Plan {
    pub(crate) fn create(of: &mut Match, options: PlanOptions) -> Result<Self> {
        let signal = options.signal.map(Box::new);
        let c = sys::kvstrata_plan_options {
            flags: options.flags,
            streams: if options.streams.is_empty() { std::ptr::null() } else { options.streams.as_ptr() },
            stream_count: options.streams.len() as u64,
            timeout_ms: options.timeout_ms,
            signal: signal.as_ref().and(Some(on_signal)),
            signal_user: signal
                .as_ref()
                .map_or(std::ptr::null_mut(), |boxed| (&**boxed as *const Signal).cast_mut().cast()),
            ..Default::default()
        };
        // SAFETY: everything that `c` points to lives through the call, the signal as long as the plan; so below.
        let raw = make(|out, error| unsafe { sys::kvstrata_plan_create(of.raw(), &c, out, error) })?;
        let mut plan = Plan { raw, segments: Vec::new(), destinations: Vec::new(), _signal: signal };
        for index in 0..unsafe { sys::kvstrata_plan_segment_count(plan.raw.as_ptr()) } {
            let segment =
                get(|out, error| unsafe { sys::kvstrata_plan_get_segment(plan.raw.as_ptr(), index, out, error) })?;
            plan.segments.push(segment);
        }
        Ok(plan)
    }
    /// What will be read, one entry per stream that is not empty, in order of arrival.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// Checks every destination, then begins. On failure the destinations are gone from the plan and come back.
    pub fn start(&mut self, mut destinations: Vec<Buffer>) -> std::result::Result<(), (crate::Error, Vec<Buffer>)> {
        let described: Vec<_> = destinations.iter_mut().map(Buffer::describe).collect();
        let raw: Vec<sys::kvstrata_buffer> = described.iter().map(|one| one.c).collect();
        // SAFETY: the memory is kept below until the C plan is destroyed.
        match unsafe { self.start_raw(&raw) } {
            Ok(()) => {
                self.destinations = destinations;
                Ok(())
            }
            Err(error) => Err((error, destinations)),
        }
    }
    /// The same with memory that the plan does not own.
    ///
    /// # Safety
    /// What the buffers describe stays valid, and is touched by nobody, until the plan has quiesced or is dropped.
    pub unsafe fn start_raw(&mut self, destinations: &[sys::kvstrata_buffer]) -> Result<()> {
        check(|error| unsafe {
            sys::kvstrata_plan_start(
                self.raw.as_ptr(),
                destinations.as_ptr(),
                destinations.len() as u64,
                std::mem::size_of::<sys::kvstrata_buffer>() as u64,
                error,
            )
        })
    }
    /// Never blocks.
    pub fn poll(&self) -> Result<PlanResult> {
        get(|out, error| unsafe { sys::kvstrata_plan_poll(self.raw.as_ptr(), out, error) })
    }
    /// Until the leading `layers` layers are ready or the plan has ended.
    pub fn wait_layers(&self, layers: u64, timeout_ms: u64) -> Result<PlanResult> {
        get(|out, error| unsafe { sys::kvstrata_plan_wait_layers(self.raw.as_ptr(), layers, timeout_ms, out, error) })
    }
    /// Until the end and quiescence; u64::MAX = without a limit of its own.
    pub fn wait(&self, timeout_ms: u64) -> Result<PlanResult> {
        get(|out, error| unsafe { sys::kvstrata_plan_wait(self.raw.as_ptr(), timeout_ms, out, error) })
    }
    pub fn cancel(&self) {
        unsafe { sys::kvstrata_plan_cancel(self.raw.as_ptr()) }
    }
    /// Ends the plan (cancelled, if it still runs) and gives the destinations back.
    pub fn into_destinations(mut self) -> Vec<Buffer> {
        let destinations = std::mem::take(&mut self.destinations);
        // The C plan goes here, before anybody can look at the memory.
        drop(self);
        destinations
    }
    pub(crate) fn as_raw(&self) -> *const sys::kvstrata_plan {
        self.raw.as_ptr()
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: owned, and not used afterwards. The fields, which it may have used, go after it.
        unsafe { sys::kvstrata_plan_destroy(self.raw.as_ptr()) }
    }
}

unsafe extern "C" fn on_signal(user: *mut c_void, layers_ready: u64, state: i32) -> i32 {
    // SAFETY: `user` is the plan's signal, which outlives the C plan.
    let goes_on = catch_unwind(AssertUnwindSafe(|| unsafe { (*user.cast::<Signal>())(layers_ready, state) }));
    i32::from(!goes_on.unwrap_or(false))
}
