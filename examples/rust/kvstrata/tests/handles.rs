// SPDX-License-Identifier: Apache-2.0
//! What is Rust's own in the crate: which handles cross threads, who owns memory, what a panic becomes.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kvstrata::*;

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}

/// Has one `check` for every type, and a second one for types that are Sync: a call is ambiguous then, and fails to
/// compile.
trait IsNotSync<A> {
    fn check() {}
}
impl<T> IsNotSync<()> for T {}
impl<T: Sync> IsNotSync<u8> for T {}

#[test]
fn handles_cross_threads_as_the_header_says() {
    is_send::<Layout>();
    is_send::<Cache>();
    is_send::<Namespace>();
    is_send::<Match>();
    is_send::<Plan>();
    is_send::<Pin>();
    is_send::<Writer>();
    is_send::<Request>();
    is_sync::<Layout>();
    is_sync::<Cache>();
    is_sync::<Namespace>();
    is_sync::<Plan>();
    is_sync::<Pin>();
    <Match as IsNotSync<_>>::check();
    <Writer as IsNotSync<_>>::check();
    <Request as IsNotSync<_>>::check();
}

const IDENTITY: [(&str, &[u8]); 4] =
    [("model.weights", b"w"), ("adapter", b""), ("engine.state_version", b"1"), ("tenant", b"")];

fn ids(count: i32) -> Vec<i32> {
    (0..count).collect()
}

fn store_state(space: &Namespace, state: &[u8]) -> Result<CommitInfo> {
    let mut writer = space.writer(None, WriterOptions::default())?;
    writer.set_source(Buffer::linear(0, state.to_vec()))?;
    writer.advance(&ids(40), &[], 40)?;
    writer.snapshot()?;
    writer.commit(0, 0)
}

type Record = (Key, Vec<u8>, Vec<u8>);

#[derive(Default)]
struct Memory {
    records: Mutex<Vec<Record>>,
    // 1: put panics, 2: requests are dropped without being looked at, 3: list panics.
    fault: AtomicUsize,
}

impl Storage for Memory {
    fn put(&self, key: &Key, parts: &[&[u8]], meta: &[u8]) -> Result<()> {
        assert_ne!(self.fault.load(Ordering::SeqCst), 1, "this panic is part of the test");
        let mut records = self.records.lock().unwrap();
        records.retain(|(known, _, _)| known != key);
        records.push((*key, parts.concat(), meta.to_vec()));
        Ok(())
    }
    fn get(&self, key: &Key, offset: u64, destination: &mut [u8]) -> Result<()> {
        let records = self.records.lock().unwrap();
        let found = records.iter().find(|(known, _, _)| known == key).ok_or(Error::new(sys::KVSTRATA_E_NOT_FOUND))?;
        destination.copy_from_slice(&found.1[offset as usize..offset as usize + destination.len()]);
        Ok(())
    }
    fn stat(&self, _: &Key) -> Result<Option<u64>> {
        Ok(None)
    }
    fn remove(&self, key: &Key) -> Result<()> {
        self.records.lock().unwrap().retain(|(known, _, _)| known != key);
        Ok(())
    }
    fn list(&self, _: u64, _: usize) -> Result<(Vec<Entry>, u64)> {
        assert_ne!(self.fault.load(Ordering::SeqCst), 3, "this panic is part of the test");
        Ok((Vec::new(), 0))
    }
    fn submit(&self, requests: Vec<Request>) {
        for request in requests {
            if self.fault.load(Ordering::SeqCst) != 2 {
                request.run(self);
            }
        }
    }
}

fn open_on(storage: &Arc<Memory>) -> Result<Cache> {
    Cache::open(&CacheOptions { storage: Some(storage.clone()), capacity_bytes: 1 << 20, ..Default::default() })
}

#[test]
fn a_storage_that_panics_or_forgets_a_request_fails_it_and_nothing_else() {
    let storage = Arc::new(Memory::default());
    let layout = Layout::opaque(16).unwrap();
    let cache = open_on(&storage).unwrap();
    let space = cache.namespace(&layout, &IDENTITY, NamespaceOptions::default()).unwrap();
    for fault in [1, 2] {
        storage.fault.store(fault, Ordering::SeqCst);
        let info = store_state(&space, b"state").unwrap();
        assert_eq!((info.snapshots_stored, info.snapshots_dropped), (0, 1));
    }
    storage.fault.store(0, Ordering::SeqCst);
    assert_eq!(store_state(&space, b"state").unwrap().snapshots_stored, 1);
}

#[test]
fn a_failed_open_leaves_the_storage_with_the_caller() {
    let storage = Arc::new(Memory::default());
    storage.fault.store(3, Ordering::SeqCst);
    assert_eq!(open_on(&storage).err().map(|error| error.code), Some(sys::KVSTRATA_E_CALLBACK));
    assert_eq!(Arc::strong_count(&storage), 1);
    storage.fault.store(0, Ordering::SeqCst);
    let cache = open_on(&storage).unwrap();
    assert_eq!(Arc::strong_count(&storage), 2);
    drop(cache);
    assert_eq!(Arc::strong_count(&storage), 1);
}

fn restored(state: &[u8]) -> (Cache, Match) {
    let layout = Layout::opaque(16).unwrap();
    let cache = Cache::open(&CacheOptions { capacity_bytes: 1 << 20, ..Default::default() }).unwrap();
    let space = cache.namespace(&layout, &IDENTITY, NamespaceOptions::default()).unwrap();
    store_state(&space, state).unwrap();
    let found = space.lookup(&ids(41), LookupOptions::default()).unwrap();
    (cache, found)
}

#[test]
fn destinations_come_back_when_the_plan_is_over() {
    let (_cache, mut found) = restored(b"the state");
    let mut plan = found.plan(PlanOptions::default()).unwrap();
    let short = plan.start(vec![Buffer::linear(0, vec![0; 8])]);
    let (error, returned) = short.unwrap_err();
    assert_eq!(error.code, sys::KVSTRATA_E_BUFFER_TOO_SMALL);
    assert_eq!(returned[0].memory, vec![0; 8]);
    plan.start(vec![Buffer::linear(0, vec![0; 9])]).unwrap();
    assert_eq!(plan.wait(u64::MAX).unwrap().usable_tokens, 40);
    assert_eq!(plan.into_destinations()[0].memory, b"the state");
}

#[test]
fn a_plan_that_is_leaked_keeps_its_memory() {
    let (_cache, mut found) = restored(b"the state");
    let mut plan = found.plan(PlanOptions::default()).unwrap();
    plan.start(vec![Buffer::linear(0, vec![0; 9])]).unwrap();
    std::mem::forget(plan);
}

#[test]
fn a_signal_is_called_on_another_thread_and_a_plan_is_waited_for_from_several() {
    let (_cache, mut found) = restored(b"the state");
    let last = Arc::new(AtomicUsize::new(0));
    let seen = last.clone();
    let signal = move |_: u64, state: i32| {
        seen.store(state as usize, Ordering::SeqCst);
        true
    };
    let mut plan = found.plan(PlanOptions { signal: Some(Box::new(signal)), ..Default::default() }).unwrap();
    plan.start(vec![Buffer::linear(0, vec![0; 9])]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(plan.wait(u64::MAX).unwrap().state, sys::KVSTRATA_PLAN_COMPLETE));
        }
    });
    drop(plan);
    assert_eq!(last.load(Ordering::SeqCst), sys::KVSTRATA_PLAN_COMPLETE as usize);
}

#[test]
fn a_fork_has_sources_of_its_own() {
    let layout = Layout::opaque(16).unwrap();
    let cache = Cache::open(&CacheOptions { capacity_bytes: 1 << 20, ..Default::default() }).unwrap();
    let space = cache.namespace(&layout, &IDENTITY, NamespaceOptions::default()).unwrap();
    let mut writer = space.writer(None, WriterOptions::default()).unwrap();
    writer.set_source(Buffer::linear(0, b"state".to_vec())).unwrap();
    writer.advance(&ids(20), &[], 20).unwrap();
    let mut fork = writer.fork().unwrap();
    writer.source_mut(0).unwrap().fill(0);
    drop(writer);
    fork.snapshot().unwrap();
    fork.commit(0, 0).unwrap();
    let mut plan = space.lookup(&ids(21), LookupOptions::default()).unwrap().plan(PlanOptions::default()).unwrap();
    plan.start(vec![Buffer::linear(0, vec![0; 5])]).unwrap();
    plan.wait(u64::MAX).unwrap();
    assert_eq!(plan.into_destinations()[0].memory, b"state");
}

#[test]
fn pinned_rows_are_read_by_several_threads_when_match_and_cache_have_gone() {
    let layout = Layout::mla(1, 6, 16).unwrap();
    let cache = Cache::open(&CacheOptions { capacity_bytes: 1 << 20, ..Default::default() }).unwrap();
    let mut identity = IDENTITY.to_vec();
    identity.extend(["model.quantization", "rope", "packing", "kernel.numerics"].map(|name| (name, &b""[..])));
    let space = cache.namespace(&layout, &identity, NamespaceOptions::default()).unwrap();
    let rows: Vec<u8> = (0..32 * 6).collect();
    let mut writer = space.writer(None, WriterOptions::default()).unwrap();
    writer.set_source(Buffer::linear(0, rows.clone())).unwrap();
    writer.advance(&ids(32), &[], 32).unwrap();
    writer.commit(0, 0).unwrap();
    drop(writer);
    let pin = space.lookup(&ids(33), LookupOptions::default()).unwrap().pin().unwrap();
    drop(space);
    drop(cache);
    let info = pin.info().unwrap();
    assert_eq!((info.first_token, info.end_token, info.range_count), (0, 32, 1));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let range = pin.range(0).unwrap();
                assert_eq!((range.stream, range.first_row, range.rows), (0, 0, 32));
                assert_eq!(range.bytes, rows);
            });
        }
    });
    assert_eq!(pin.range(1).unwrap_err().code, sys::KVSTRATA_E_INVALID_ARGUMENT);
}
