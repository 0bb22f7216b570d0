// SPDX-License-Identifier: Apache-2.0
//! A cache's storage as a trait.
//!
//! I1. No panic leaves a callback: it becomes KVSTRATA_E_CALLBACK.
//! I2. A request completes exactly once: by `complete`, or with KVSTRATA_E_CALLBACK when it is dropped.
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use crate::{sys, Error, Result};

pub type Key = [u8; 32];

/// What `list` gives of a record; `stored_bytes` is what it costs of the budget.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Key,
    pub payload_bytes: u64,
    pub stored_bytes: u64,
    pub meta: Vec<u8>,
}

/// Called from any thread of the library, several at once. The rules of each call are in c_api.h, section 4.
pub trait Storage: Send + Sync + 'static {
    /// `KVSTRATA_STORAGE_DURABLE_SYNC | KVSTRATA_STORAGE_PERSISTENT`
    fn capabilities(&self) -> u64 {
        0
    }
    /// Replaces the record of `key` as a whole; its payload is the parts, one after the other.
    fn put(&self, key: &Key, parts: &[&[u8]], meta: &[u8]) -> Result<()>;
    /// Fills `destination` from `offset` on. An absent key is KVSTRATA_E_NOT_FOUND, a shorter record
    /// KVSTRATA_E_CORRUPT.
    fn get(&self, key: &Key, offset: u64, destination: &mut [u8]) -> Result<()>;
    /// Payload bytes, None when there is no such record.
    fn stat(&self, key: &Key) -> Result<Option<u64>>;
    /// An absent key is no failure.
    fn remove(&self, key: &Key) -> Result<()>;
    fn sync(&self) -> Result<()> {
        Err(Error::new(sys::KVSTRATA_E_UNSUPPORTED))
    }
    /// At most `capacity` entries from `cursor` (0 at first) on, and the next cursor; 0 = the end.
    fn list(&self, cursor: u64, capacity: usize) -> Result<(Vec<Entry>, u64)>;

    /// Whether `count` requests can be taken now: KVSTRATA_E_BUSY refuses all of them.
    fn admit(&self, count: usize) -> Result<()> {
        let _ = count;
        Ok(())
    }
    /// Takes the requests. A storage that completes later keeps them.
    fn submit(&self, requests: Vec<Request>) {
        for request in requests {
            request.run(self);
        }
    }
}

/// One put or ranged get that has been accepted.
pub struct Request {
    c: sys::kvstrata_storage_request,
}

// SAFETY: what it points to stays valid, and is nobody else's, until it completes on whichever thread (c_api.h).
unsafe impl Send for Request {}

impl Request {
    pub fn is_put(&self) -> bool {
        self.c.kind == sys::KVSTRATA_STORAGE_PUT
    }
    pub fn key(&self) -> &Key {
        &self.c.key.bytes
    }
    /// Does what it asks for with `put` or `get`, and completes it.
    pub fn run<S: Storage + ?Sized>(mut self, storage: &S) {
        let done = catch_unwind(AssertUnwindSafe(|| self.run_with(storage)));
        self.complete(done.unwrap_or_else(|_| Err(Error::new(sys::KVSTRATA_E_CALLBACK))));
    }
    fn run_with<S: Storage + ?Sized>(&mut self, storage: &S) -> Result<()> {
        if self.is_put() {
            // SAFETY: the parts and the meta are valid until completion; a part without bytes may have no address.
            let (parts, meta) = unsafe {
                let raw = slice_of(self.c.parts, self.c.part_count);
                let parts: Vec<&[u8]> = raw.iter().map(|part| slice_of(part.data.cast(), part.size)).collect();
                (parts, slice_of(self.c.meta.cast::<u8>(), self.c.meta_size))
            };
            storage.put(&self.c.key.bytes, &parts, meta)
        } else if self.c.size == 0 {
            storage.get(&self.c.key.bytes, self.c.offset, &mut [])
        } else {
            // SAFETY: `size` bytes of staging memory that are this request's alone until completion.
            let destination =
                unsafe { std::slice::from_raw_parts_mut(self.c.destination.cast::<u8>(), self.c.size as usize) };
            storage.get(&self.c.key.bytes, self.c.offset, destination)
        }
    }
    fn bytes(&self) -> u64 {
        if !self.is_put() {
            return self.c.size;
        }
        // SAFETY: as above.
        unsafe { slice_of(self.c.parts, self.c.part_count) }.iter().map(|part| part.size).sum()
    }
    pub fn complete(self, result: Result<()>) {
        let (status, native, bytes) = match &result {
            Ok(()) => (sys::KVSTRATA_OK, 0, self.bytes()),
            Err(error) => (failing(error.code), error.native_code, 0),
        };
        self.finish(status, bytes, native);
        std::mem::forget(self);
    }
    fn finish(&self, status: i32, bytes: u64, native_code: i64) {
        if let Some(complete) = self.c.complete {
            // SAFETY: once for each request: `complete` forgets it, `drop` is the other way out.
            unsafe { complete(self.c.user, status, bytes, native_code) }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.finish(sys::KVSTRATA_E_CALLBACK, 0, 0);
    }
}

/// # Safety
/// `count` elements are valid for 'a, or `count` is 0.
unsafe fn slice_of<'a, T>(from: *const T, count: u64) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from, count as usize) }
}

/// An `Err` is a failure, whatever number it carries.
fn failing(code: i32) -> i32 {
    if code == sys::KVSTRATA_OK {
        sys::KVSTRATA_E_CALLBACK
    } else {
        code
    }
}

type Context = Arc<dyn Storage>;

/// A table that owns one reference to the storage, until `destroy` or `take_back`.
pub(crate) fn table_of(storage: Context) -> sys::kvstrata_storage {
    let capabilities = storage.capabilities();
    sys::kvstrata_storage {
        abi_version: sys::KVSTRATA_ABI_VERSION as u32,
        ctx: Box::into_raw(Box::new(storage)).cast(),
        destroy: Some(destroy),
        capabilities,
        submit: Some(submit),
        stat: Some(stat),
        remove: Some(remove),
        sync: Some(sync),
        list: Some(list),
        ..Default::default()
    }
}

/// The open failed: ctx has stayed ours.
pub(crate) fn take_back(table: &sys::kvstrata_storage) {
    // SAFETY: made by table_of, and the library has not taken it.
    unsafe { destroy(table.ctx) }
}

fn fenced(run: impl FnOnce() -> Result<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => sys::KVSTRATA_OK,
        Ok(Err(error)) => failing(error.code),
        Err(_) => sys::KVSTRATA_E_CALLBACK,
    }
}

/// # Safety
/// `ctx` is from table_of and has not been destroyed.
unsafe fn storage_of<'a>(ctx: *mut c_void) -> &'a dyn Storage {
    // SAFETY: the caller's promise.
    unsafe { &**ctx.cast::<Context>() }
}

unsafe extern "C" fn destroy(ctx: *mut c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: called once, after the last call; the box is table_of's.
        drop(unsafe { Box::from_raw(ctx.cast::<Context>()) });
    }));
}

unsafe extern "C" fn submit(
    ctx: *mut c_void,
    requests: *const sys::kvstrata_storage_request,
    count: u64,
    stride: u64,
) -> i32 {
    fenced(|| {
        // SAFETY: the library calls with its table's ctx.
        let storage = unsafe { storage_of(ctx) };
        storage.admit(count as usize)?;
        let taken = (0..count as usize).map(|i| {
            // SAFETY: an array of `count` requests, `stride` bytes apart.
            Request { c: unsafe { read_request(requests.cast::<u8>().add(i * stride as usize)) } }
        });
        let taken: Vec<Request> = taken.collect();
        // They are accepted from here on: a panic drops, and so completes, those that are left.
        let _ = catch_unwind(AssertUnwindSafe(|| storage.submit(taken)));
        Ok(())
    })
}

/// Size first: what a shorter struct lacks is zero.
///
/// # Safety
/// `from` is a request, of as many bytes as its struct_size says.
unsafe fn read_request(from: *const u8) -> sys::kvstrata_storage_request {
    let mut c = sys::kvstrata_storage_request::default();
    let ours = std::mem::size_of_val(&c);
    // SAFETY: the smaller of both sizes.
    unsafe {
        let theirs = from.cast::<u32>().read_unaligned() as usize;
        std::ptr::copy_nonoverlapping(from, (&mut c as *mut sys::kvstrata_storage_request).cast(), ours.min(theirs));
    }
    c
}

unsafe extern "C" fn stat(
    ctx: *mut c_void,
    key: *const sys::kvstrata_key,
    out_exists: *mut i32,
    out_payload_bytes: *mut u64,
) -> i32 {
    fenced(|| {
        // SAFETY: valid pointers of the library, through the call.
        let found = unsafe { storage_of(ctx).stat(&(*key).bytes)? };
        unsafe {
            *out_exists = found.is_some().into();
            *out_payload_bytes = found.unwrap_or(0);
        }
        Ok(())
    })
}

unsafe extern "C" fn remove(ctx: *mut c_void, key: *const sys::kvstrata_key) -> i32 {
    // SAFETY: as for stat.
    fenced(|| unsafe { storage_of(ctx).remove(&(*key).bytes) })
}

unsafe extern "C" fn sync(ctx: *mut c_void) -> i32 {
    // SAFETY: as for stat.
    fenced(|| unsafe { storage_of(ctx).sync() })
}

unsafe extern "C" fn list(
    ctx: *mut c_void,
    cursor: *mut u64,
    entries: *mut sys::kvstrata_storage_entry,
    capacity: u64,
    stride: u64,
    out_count: *mut u64,
) -> i32 {
    fenced(|| {
        // SAFETY: valid pointers of the library; `entries` has `capacity` elements, `stride` bytes apart.
        let (found, next) = unsafe { storage_of(ctx).list(*cursor, capacity as usize)? };
        if found.len() as u64 > capacity || found.iter().any(|entry| entry.meta.len() > 4096) {
            return Err(Error::new(sys::KVSTRATA_E_CALLBACK));
        }
        for (index, entry) in found.iter().enumerate() {
            let to: &mut sys::kvstrata_storage_entry =
                unsafe { &mut *entries.cast::<u8>().add(index * stride as usize).cast() };
            to.key.bytes = entry.key;
            to.payload_bytes = entry.payload_bytes;
            to.stored_bytes = entry.stored_bytes;
            to.meta_size = entry.meta.len() as u32;
            to.meta[..entry.meta.len()].copy_from_slice(&entry.meta);
        }
        unsafe {
            *cursor = next;
            *out_count = found.len() as u64;
        }
        Ok(())
    })
}
