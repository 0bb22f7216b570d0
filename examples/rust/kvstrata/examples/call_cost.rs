// SPDX-License-Identifier: Apache-2.0
//! The cases of benchmarks/call_cost/call_cost.py through the safe crate.
//!
//! usage: call_cost lookup|miss|restore|pinned_hit COUNT
use kvstrata::*;

const TOKENS: usize = 2048;
const ROW_BYTES: usize = 16;

fn open() -> Result<(Cache, Namespace)> {
    let cache = Cache::open(&CacheOptions { capacity_bytes: 64 << 20, ..Default::default() })?;
    let row = Stream {
        kind: sys::KVSTRATA_STREAM_ROWS as i32,
        role: sys::KVSTRATA_ROLE_OTHER as i32,
        ratio: 1,
        row_bytes: ROW_BYTES as u32,
        packing: sys::KVSTRATA_PACKING_RAW as i32,
        ..Default::default()
    };
    let layout = Layout::create(&LayoutDesc {
        family: "custom".into(),
        block_tokens: 64,
        streams: vec![row],
        ..Default::default()
    })?;
    let identity: &[(&str, &[u8])] = &[("model.weights", b"w"), ("tenant", b"")];
    let space = cache.namespace(&layout, identity, NamespaceOptions::default())?;
    Ok((cache, space))
}

fn run(case: &str, count: u64) -> Result<()> {
    let (_cache, space) = open()?;
    let ids: Vec<i32> = (0..=TOKENS as i32).map(|i| i * 3).collect();
    let others = vec![7; TOKENS + 1];
    let mut writer = space.writer(None, WriterOptions::default())?;
    writer.set_source(Buffer::linear(0, vec![5; TOKENS * ROW_BYTES]))?;
    writer.advance(&ids[..TOKENS], &[], TOKENS as u64)?;
    writer.commit(0, 0)?;
    drop(writer);

    let miss = case == "miss";
    let expected = if miss { 0 } else { TOKENS as u64 };
    let mut memory = Some(vec![0; TOKENS * ROW_BYTES]);
    for _ in 0..count {
        let mut found = space.lookup(if miss { &others } else { &ids }, LookupOptions::default())?;
        if case == "restore" {
            let mut plan = found.plan(PlanOptions::default())?;
            let into = Buffer::linear(0, memory.take().unwrap());
            plan.start(vec![into]).map_err(|(error, _)| error)?;
            assert_eq!(plan.wait(u64::MAX)?.usable_tokens, expected);
            memory = plan.into_destinations().pop().map(|buffer| buffer.memory);
        }
        if case == "pinned_hit" {
            let pin = found.pin()?;
            assert_eq!(pin.info()?.end_token, expected);
            assert_eq!(pin.range(0)?.bytes.len(), TOKENS * ROW_BYTES);
        }
        assert_eq!(found.info()?.usable_tokens, expected);
    }
    Ok(())
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    run(&given[1], given[2].parse().expect("COUNT")).expect("a call failed");
}
