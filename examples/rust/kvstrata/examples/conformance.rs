// SPDX-License-Identifier: Apache-2.0
//! Answers the conformance cases with the safe crate (tests/conformance/README.md says what the steps mean).
//!
//! usage: conformance CASES FOLDER
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kvstrata::*;

const GUARD: usize = 16;
const UNTOUCHED: u8 = 0xEE;
const NAMES: [&str; 8] = [
    "model.weights",
    "model.quantization",
    "rope",
    "packing",
    "adapter",
    "engine.state_version",
    "kernel.numerics",
    "tenant",
];
/// Which member of which struct lies where: the table of the drivers in C and C++.
const MEMBERS: &str = include_str!("../../../../tests/conformance/members.h");

// --- The language

struct Step {
    operation: String,
    name: String,
    given: Vec<(String, String)>,
    asked: Vec<String>,
}

impl Step {
    fn parse(text: &str) -> Option<Step> {
        let text = text.split('#').next().unwrap_or("");
        let (left, right) = text.split_once("=>").unwrap_or((text, ""));
        let mut words = left.split_whitespace().peekable();
        let operation = words.next()?.to_string();
        let name = words.next_if(|word| !word.contains('=')).unwrap_or("").to_string();
        let pair = |word: &str| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (key.to_string(), value.to_string())
        };
        let asked = right.split_whitespace().map(|word| pair(word).0).filter(|key| key != "status").collect();
        Some(Step { operation, name, given: words.map(pair).collect(), asked })
    }
    fn value(&self, key: &str) -> Option<&str> {
        self.given.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
    fn number(&self, key: &str) -> u64 {
        self.value(key).map_or(0, |text| text.parse().expect("a number"))
    }
    fn real(&self, key: &str) -> f64 {
        self.value(key).map_or(0.0, |text| text.parse().expect("a number"))
    }
    fn numbers(&self, key: &str) -> Vec<u32> {
        self.value(key).map_or(Vec::new(), list)
    }
}

fn list(text: &str) -> Vec<u32> {
    text.split(',').map(|word| word.parse().expect("a number")).collect()
}

fn plain(text: &str) -> String {
    text.replace('~', " ").replace('|', "\n")
}

fn escaped(text: &str) -> String {
    text.replace(' ', "~").replace('\n', "|")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn joined<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

fn tokens_of(spec: &str) -> Vec<i32> {
    let mut ids = Vec::new();
    for part in spec.split(',') {
        let (kind, count) = part.split_once('x').expect("KINDxCOUNT");
        let kind: usize = kind.parse().expect("a number");
        let end = ids.len() + count.parse::<usize>().expect("a number");
        ids.extend((ids.len()..end).map(|position| ((kind * 101 + position * 7) % 50000) as i32));
    }
    ids
}

fn fill(mark: u64, stream: u64, at: u64, first: u64, rows: u64, row_bytes: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for row in first..first + rows {
        for byte in 0..row_bytes {
            let sum = mark * 29 + stream * 37 + at * 101 + row * 11 + byte * 3 + (row >> 8) * 5 + (at >> 8) * 7;
            out.push((sum & 0xff) as u8);
        }
    }
    out
}

// --- The caller's storage

#[derive(Default)]
struct Records {
    items: Vec<(Key, Vec<u8>, Vec<u8>)>,
    failing: BTreeMap<String, i32>,
    held: Vec<Request>,
    hold: Option<bool>,
}

#[derive(Default)]
struct Store {
    capabilities: u64,
    records: Mutex<Records>,
    destroyed: AtomicU64,
}

impl Store {
    fn with<T>(&self, call: &str, run: impl FnOnce(&mut Records) -> Result<T>) -> Result<T> {
        let mut records = self.records.lock().expect("no panic within");
        match records.failing.get(call) {
            Some(code) if *code != 0 => Err(Error::new(*code)),
            _ => run(&mut records),
        }
    }
    fn let_go(&self) {
        let held = {
            let mut records = self.records.lock().expect("no panic within");
            records.hold = None;
            std::mem::take(&mut records.held)
        };
        for request in held {
            request.run(self);
        }
    }
}

/// What a cache owns of a store: its end is the table's, unless the open failed.
struct Table(Arc<Store>, AtomicBool);

impl Drop for Table {
    fn drop(&mut self) {
        self.0.destroyed.fetch_add(self.1.load(Ordering::SeqCst).into(), Ordering::SeqCst);
    }
}

impl Storage for Store {
    fn put(&self, key: &Key, parts: &[&[u8]], meta: &[u8]) -> Result<()> {
        self.with("put", |records| {
            records.items.retain(|(known, _, _)| known != key);
            records.items.push((*key, parts.concat(), meta.to_vec()));
            Ok(())
        })
    }
    fn get(&self, key: &Key, offset: u64, destination: &mut [u8]) -> Result<()> {
        self.with("get", |records| {
            let found = records.items.iter().find(|(known, _, _)| known == key);
            let (_, payload, _) = found.ok_or(Error::new(sys::KVSTRATA_E_NOT_FOUND))?;
            let begin = offset as usize;
            let part = payload.get(begin..begin + destination.len());
            destination.copy_from_slice(part.ok_or(Error::new(sys::KVSTRATA_E_CORRUPT))?);
            Ok(())
        })
    }
    fn stat(&self, key: &Key) -> Result<Option<u64>> {
        self.with("stat", |records| {
            Ok(records.items.iter().find(|(known, _, _)| known == key).map(|(_, payload, _)| payload.len() as u64))
        })
    }
    fn remove(&self, key: &Key) -> Result<()> {
        self.with("remove", |records| {
            records.items.retain(|(known, _, _)| known != key);
            Ok(())
        })
    }
    fn sync(&self) -> Result<()> {
        self.with("sync", |_| Ok(()))
    }
    fn list(&self, cursor: u64, capacity: usize) -> Result<(Vec<Entry>, u64)> {
        self.with("list", |records| {
            let entry = |(key, payload, meta): &(Key, Vec<u8>, Vec<u8>)| Entry {
                key: *key,
                payload_bytes: payload.len() as u64,
                stored_bytes: (payload.len() + meta.len()) as u64,
                meta: meta.clone(),
            };
            let found: Vec<Entry> = records.items.iter().skip(cursor as usize).take(capacity).map(entry).collect();
            let next = cursor + found.len() as u64;
            Ok((found, if next < records.items.len() as u64 { next } else { 0 }))
        })
    }
}

impl Storage for Table {
    fn capabilities(&self) -> u64 {
        self.0.capabilities
    }
    fn put(&self, key: &Key, parts: &[&[u8]], meta: &[u8]) -> Result<()> {
        self.0.put(key, parts, meta)
    }
    fn get(&self, key: &Key, offset: u64, destination: &mut [u8]) -> Result<()> {
        self.0.get(key, offset, destination)
    }
    fn stat(&self, key: &Key) -> Result<Option<u64>> {
        self.0.stat(key)
    }
    fn remove(&self, key: &Key) -> Result<()> {
        self.0.remove(key)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
    fn list(&self, cursor: u64, capacity: usize) -> Result<(Vec<Entry>, u64)> {
        self.0.list(cursor, capacity)
    }
    fn submit(&self, requests: Vec<Request>) {
        for request in requests {
            let mut records = self.0.records.lock().expect("no panic within");
            if records.hold == Some(request.is_put()) {
                records.held.push(request);
            } else {
                drop(records);
                request.run(self);
            }
        }
    }
}

// --- Answers

enum Answers {
    Nothing,
    Words(Vec<(String, String)>),
    /// The bytes of a struct of the C API, by the name of its type, and words beside.
    Members(&'static str, Vec<u8>, Vec<(String, String)>),
}

fn members<T: Copy>(owner: &'static str, value: &T) -> Answers {
    // SAFETY: the structs of this ABI have no padding, so all their bytes are initialised.
    let bytes = unsafe { std::slice::from_raw_parts((value as *const T).cast::<u8>(), std::mem::size_of::<T>()) };
    Answers::Members(owner, bytes.to_vec(), Vec::new())
}

fn word(key: &str, value: impl ToString) -> (String, String) {
    (key.to_string(), value.to_string())
}

fn member_of(owner: &str, bytes: &[u8], key: &str) -> String {
    let (name, index) = key.split_once(':').unwrap_or((key, "0"));
    let wanted = format!("{{\"{owner}\", \"{name}\", ");
    let Some(line) = MEMBERS.lines().find(|line| line.trim_start().starts_with(&wanted)) else {
        return "?".into();
    };
    let rest = line.trim_start().trim_start_matches(&wanted);
    let words: Vec<&str> = rest.trim_end_matches("},").split(", ").collect();
    let numbers: Vec<usize> = words[..3].iter().map(|word| word.parse().expect("a number")).collect();
    let (offset, size, count) = (numbers[0], numbers[1], numbers[2]);
    if words[3] == "'b'" {
        return hex(&bytes[offset..offset + size]);
    }
    let each = size / count;
    let begin = offset + index.parse::<usize>().expect("a number") * each;
    let mut wide = [0u8; 8];
    wide[..each].copy_from_slice(&bytes[begin..begin + each]);
    let number = u64::from_le_bytes(wide);
    match (words[3], each) {
        ("'i'", 4) => (number as u32 as i32).to_string(),
        ("'i'", _) => (number as i64).to_string(),
        _ => number.to_string(),
    }
}

impl Answers {
    fn of(&self, key: &str) -> String {
        let found =
            |words: &[(String, String)]| words.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone());
        match self {
            Answers::Nothing => "?".into(),
            Answers::Words(words) => found(words).unwrap_or("?".into()),
            Answers::Members(owner, bytes, words) => found(words).unwrap_or_else(|| member_of(owner, bytes, key)),
        }
    }
    fn and(mut self, key: &str, value: impl ToString) -> Answers {
        if let Answers::Members(_, _, words) = &mut self {
            words.push(word(key, value));
        }
        self
    }
}

// --- A case

struct Restore {
    plan: Option<Plan>,
    layout: Arc<Layout>,
    segments: Vec<Segment>,
    mark: u64,
}

#[derive(Default)]
struct Case {
    folder: PathBuf,
    layouts: BTreeMap<String, Arc<Layout>>,
    stores: BTreeMap<String, Arc<Store>>,
    caches: BTreeMap<String, Cache>,
    spaces: BTreeMap<String, (Namespace, Arc<Layout>)>,
    matches: BTreeMap<String, (Match, Arc<Layout>)>,
    plans: BTreeMap<String, Restore>,
    pins: BTreeMap<String, Pin>,
}

fn make_layout(step: &Step) -> Result<Layout> {
    let options = PresetOptions {
        block_tokens: step.number("block_tokens") as u32,
        rows: step.number("rows") as i32,
        index_keys: step.number("index_keys") as i32,
        include_draft: step.number("include_draft") != 0,
    };
    if let Some(name) = step.value("preset") {
        return Layout::preset(name, options);
    }
    if let [layers, heads, dim, bytes, block] = step.numbers("gqa")[..] {
        return Layout::gqa(layers, heads, dim, bytes, block);
    }
    if let [layers, row_bytes, block] = step.numbers("mla")[..] {
        return Layout::mla(layers, row_bytes, block);
    }
    if let [block] = step.numbers("opaque")[..] {
        return Layout::opaque(block);
    }
    if let Some(text) = step.value("text") {
        return Layout::from_text(&plain(text));
    }
    if let Some(text) = step.value("config") {
        return Layout::from_config(&plain(text), options);
    }
    let (family, rest) = step.value("create").and_then(|text| text.split_once(',')).expect("create=");
    let n = list(rest);
    let streams = step.given.iter().filter(|(key, _)| key == "stream").map(|(_, value)| {
        let n = list(value);
        Stream {
            kind: n[0] as i32,
            role: n[1] as i32,
            layer: n[2],
            ratio: n[3],
            row_bytes: n[4],
            state_rows: n[5],
            packing: n[6] as i32,
            flags: n[7],
        }
    });
    Layout::create(&LayoutDesc {
        family: family.into(),
        block_tokens: n[0],
        profile: n[1] as i32,
        replay_mode: n[2] as i32,
        replay_window: n[3],
        replay_layers: n[4],
        streams: streams.collect(),
    })
}

fn set_sources(writer: &mut Writer, layout: &Layout, step: &Step, position: u64) -> Result<()> {
    for index in 0..layout.info()?.stream_count {
        let stream = layout.stream(index)?;
        let (at, rows) = if stream.kind == sys::KVSTRATA_STREAM_ROWS {
            (0, position / u64::from(stream.ratio))
        } else {
            (position, layout.rows_at(index, position)?)
        };
        let opaque = if step.value("opaque").is_some() { step.number("opaque") } else { 100 };
        let row_bytes = if stream.row_bytes != 0 { u64::from(stream.row_bytes) } else { opaque };
        let memory = fill(step.number("mark"), u64::from(index), at, 0, rows, row_bytes);
        writer.set_source(Buffer::linear(index, memory))?;
    }
    Ok(())
}

impl Case {
    fn run(&mut self, step: &Step) -> String {
        let done = match step.operation.as_str() {
            "layout" => self.layout(step),
            "storage" | "hold" | "let_go" | "fail" | "damage" | "wipe" | "swap" | "look" => Ok(self.storage(step)),
            "cache" | "stats" | "close" | "events" | "trim" | "purge" | "sync" | "verify" => self.cache(step),
            "namespace" | "info" | "drop" => self.space(step),
            "store" | "positions" => self.store(step),
            "lookup" => self.lookup(step),
            "limit" | "renew" | "agree" | "difference" => self.found(step),
            "plan" => self.plan(step),
            "start" | "wait" | "poll" | "cancel" => self.restore(step),
            "pin" | "pinned" => self.pin(step),
            "release" => Ok(self.release(&step.name)),
            "status" => Ok(Answers::Words(vec![word("name", status_name(step.number("code") as i32))])),
            "version" => Ok(Answers::Words(vec![word("abi", abi_version()), word("format", format_version())])),
            other => panic!("no step {other}"),
        };
        let mut out = match &done {
            Ok(_) => "status=OK".to_string(),
            Err(error) => format!("status={}", status_name(error.code).trim_start_matches("KVSTRATA_")),
        };
        for key in &step.asked {
            let answer = match &done {
                Ok(answers) => answers.of(key),
                Err(error) if key == "field" => error.field.clone(),
                Err(_) => "-".into(),
            };
            out += &format!(" {key}={answer}");
        }
        out
    }

    fn layout(&mut self, step: &Step) -> Result<Answers> {
        let layout = Arc::new(make_layout(step)?);
        self.layouts.insert(step.name.clone(), layout.clone());
        let mut out = members("kvstrata_layout_info", &layout.info()?).and("text", escaped(&layout.text()?));
        for key in &step.asked {
            if let Some(rest) = key.strip_prefix("snapshot_bytes:") {
                out = out.and(key, layout.snapshot_bytes(list(rest)[0].into())?);
            } else if let Some(rest) = key.strip_prefix("rows:") {
                out = out.and(key, layout.rows_at(list(rest)[0], list(rest)[1].into())?);
            }
        }
        Ok(out)
    }

    fn storage(&mut self, step: &Step) -> Answers {
        if step.operation == "storage" {
            let store = Store { capabilities: step.number("capabilities"), ..Default::default() };
            self.stores.insert(step.name.clone(), Arc::new(store));
            return Answers::Nothing;
        }
        let store = &self.stores[&step.name];
        if step.operation == "let_go" {
            store.let_go();
            return Answers::Nothing;
        }
        let mut records = store.records.lock().expect("no panic within");
        match step.operation.as_str() {
            "hold" => records.hold = Some(step.value("kind") == Some("put")),
            "fail" => {
                records.failing.insert(step.value("call").unwrap_or("").into(), step.number("code") as i32);
            }
            "damage" => {
                let least = step.number("bytes") as usize;
                for (_, payload, _) in records.items.iter_mut().filter(|(_, payload, _)| payload.len() >= least) {
                    *payload.last_mut().expect("not empty") ^= 1;
                }
            }
            "wipe" => records.items.clear(),
            "swap" => {
                let count = records.items.len();
                let (front, back) = records.items.split_at_mut(count - 1);
                std::mem::swap(&mut front[count - 2].1, &mut back[0].1);
            }
            _ => {
                return Answers::Words(vec![
                    word("records", records.items.len()),
                    word("destroyed", store.destroyed.load(Ordering::SeqCst)),
                    word("held", records.held.len()),
                ])
            }
        }
        Answers::Nothing
    }

    fn open_cache(&mut self, step: &Step) -> Result<Answers> {
        let table =
            step.value("storage").map(|name| Arc::new(Table(self.stores[name].clone(), AtomicBool::new(false))));
        let cache = Cache::open(&CacheOptions {
            path: step.value("path").map(|name| self.folder.join(name)),
            storage: table.clone().map(|table| table as Arc<dyn Storage>),
            read_only: step.number("read_only") != 0,
            capacity_bytes: step.number("capacity_bytes"),
            snapshot_bytes: step.number("snapshot_bytes"),
            staging_bytes: step.number("staging_bytes"),
            lease_bytes: step.number("lease_bytes"),
            lease_ms: step.number("lease_ms"),
            io_timeout_ms: step.number("io_timeout_ms"),
            io_threads: step.number("io_threads") as u32,
            max_blocks: step.number("max_blocks") as u32,
            eviction_policy: step.number("eviction_policy") as i32,
            admission: step.number("admission") as i32,
            high_percent: step.number("high_percent") as u32,
            low_percent: step.number("low_percent") as u32,
            ghost_bytes: step.number("ghost_bytes"),
            keep_free_bytes: step.number("keep_free_bytes"),
            lane: step.number("lane"),
            memory_bytes: step.number("memory_bytes"),
            memory_dirty_bytes: step.number("memory_dirty_bytes"),
            memory_write: step.number("memory_write") as i32,
            memory_promotion: step.number("memory_promotion") as i32,
        })?;
        if let Some(table) = table {
            table.1.store(true, Ordering::SeqCst);
        }
        self.caches.insert(step.name.clone(), cache);
        Ok(Answers::Nothing)
    }

    fn cache(&mut self, step: &Step) -> Result<Answers> {
        if step.operation == "cache" {
            return self.open_cache(step);
        }
        let cache = &self.caches[&step.name];
        Ok(match step.operation.as_str() {
            "stats" => members("kvstrata_stats", &cache.stats()?),
            "close" => members("kvstrata_close_info", &cache.close(step.number("timeout"))?),
            "trim" => Answers::Words(vec![word("held", cache.trim(step.number("bytes"))?)]),
            "purge" => Answers::Words(vec![word("bytes", cache.purge_foreign()?)]),
            "verify" => {
                let stop = step.number("stop") != 0;
                members("kvstrata_verify_info", &cache.verify(|_, _| !stop)?)
            }
            "sync" => {
                cache.sync()?;
                Answers::Nothing
            }
            _ => {
                let (events, next) = cache.events(step.number("from"), 64)?;
                Answers::Words(vec![
                    word("count", events.len()),
                    word("next", next),
                    word("kinds", joined(events.iter().map(|event| event.kind))),
                    word("positions", joined(events.iter().map(|event| event.position))),
                    word("digests", joined(events.iter().map(|event| hex(&event.digest)))),
                ])
            }
        })
    }

    fn space(&mut self, step: &Step) -> Result<Answers> {
        if step.operation == "namespace" {
            let mut identity: BTreeMap<String, String> =
                NAMES.iter().map(|name| (name.to_string(), format!("kvstrata {name}"))).collect();
            for (key, value) in &step.given {
                if let Some(name) = key.strip_prefix("set.") {
                    identity.insert(name.into(), plain(value));
                } else if let Some(name) = key.strip_prefix("drop.") {
                    identity.remove(name);
                }
            }
            let fields: Vec<(&str, &[u8])> =
                identity.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let layout = self.layouts[step.value("layout").unwrap_or("")].clone();
            let options = NamespaceOptions {
                must_exist: step.number("must_exist") != 0,
                snapshot_policy: step.number("policy") as u32,
                snapshot_every_tokens: step.number("every") as u32,
                compress: step.number("compress") as u32,
                pack: step.number("pack") as u32,
            };
            let made = self.caches[step.value("cache").unwrap_or("")].namespace(&layout, &fields, options)?;
            self.spaces.insert(step.name.clone(), (made, layout));
        }
        let (space, _) = &self.spaces[&step.name];
        if step.operation == "drop" {
            space.drop_stored()?;
            return Ok(Answers::Nothing);
        }
        Ok(members("kvstrata_namespace_info", &space.info()?))
    }

    fn store(&mut self, step: &Step) -> Result<Answers> {
        let (space, layout) = &self.spaces[&step.name];
        let found = step.value("match").map(|name| &self.matches[name].0);
        let options = WriterOptions {
            flags: step.number("flags") as u32,
            restart_multiple: step.number("restart") as u32,
            ..Default::default()
        };
        let mut writer = space.writer(found, options)?;
        let tokens = tokens_of(step.value("tokens").unwrap_or(""));
        if step.operation == "positions" {
            let positions = writer.snapshot_positions(&tokens)?;
            return Ok(Answers::Words(vec![word("positions", joined(positions.iter()))]));
        }
        let mut begin = match found {
            Some(found) => found.info()?.usable_tokens as usize,
            None => 0,
        };
        let stops = if step.value("at").is_some() { step.numbers("at") } else { vec![tokens.len() as u32] };
        for position in stops {
            set_sources(&mut writer, layout, step, position.into())?;
            writer.advance(&tokens[begin..position as usize], &[], position.into())?;
            begin = position as usize;
            if step.number("snapshot") != 0 {
                writer.snapshot()?;
            }
        }
        let flag = |key: &str, bit: i32| if step.number(key) != 0 { bit as u32 } else { 0 };
        let flags = flag("durable", sys::KVSTRATA_COMMIT_DURABLE) | flag("output_end", sys::KVSTRATA_COMMIT_OUTPUT_END);
        Ok(members("kvstrata_commit_info", &writer.commit(flags, 0)?))
    }

    fn lookup(&mut self, step: &Step) -> Result<Answers> {
        let keys: Vec<ExtraKey> = step
            .given
            .iter()
            .filter(|(key, _)| key == "key")
            .map(|(_, value)| {
                let words: Vec<&str> = value.splitn(3, ',').collect();
                ExtraKey {
                    position: words[0].parse().expect("a number"),
                    kind: words[1].parse().expect("a number"),
                    bytes: words[2].into(),
                }
            })
            .collect();
        let options = LookupOptions {
            flags: step.number("flags") as u32,
            held_tokens: step.number("held"),
            allowed_modes: step.number("modes") as u32,
            restart_multiple: step.number("restart") as u32,
            min_gain_tokens: step.number("min_gain"),
            prefill_tokens_per_second: step.real("prefill"),
            storage_bytes_per_second: step.real("rate"),
            lease_ms: step.number("lease_ms"),
        };
        let (space, layout) = &self.spaces[step.value("namespace").unwrap_or("")];
        let found = space.lookup_with_keys(&tokens_of(step.value("tokens").unwrap_or("")), &keys, options)?;
        let answers = members("kvstrata_match_info", &found.info()?);
        self.matches.insert(step.name.clone(), (found, layout.clone()));
        Ok(answers)
    }

    fn found(&mut self, step: &Step) -> Result<Answers> {
        if step.operation == "agree" {
            let wanted = format!("{},{}", step.name, step.value("with").unwrap_or(""));
            let wanted: Vec<&str> = wanted.split(',').collect();
            let mut matches: Vec<&mut Match> = self
                .matches
                .iter_mut()
                .filter(|(name, _)| wanted.contains(&name.as_str()))
                .map(|(_, (found, _))| found)
                .collect();
            return Ok(Answers::Words(vec![word("usable", agree(&mut matches)?)]));
        }
        let (found, _) = self.matches.get_mut(&step.name).expect("a match");
        Ok(match step.operation.as_str() {
            "limit" => {
                found.limit(step.number("tokens"))?;
                members("kvstrata_match_info", &found.info()?)
            }
            "renew" => {
                found.renew(step.number("ms"))?;
                Answers::Nothing
            }
            _ => {
                let position = found.first_difference()?.map_or("none".into(), |position| position.to_string());
                Answers::Words(vec![word("position", position)])
            }
        })
    }

    fn plan(&mut self, step: &Step) -> Result<Answers> {
        let (found, layout) = self.matches.get_mut(step.value("match").unwrap_or("")).expect("a match");
        let options = PlanOptions {
            flags: step.number("flags") as u32,
            timeout_ms: step.number("timeout"),
            ..Default::default()
        };
        let plan = found.plan(options)?;
        let segments = plan.segments().to_vec();
        let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let answers = Answers::Words(vec![word("segments", segments.len()), word("bytes", bytes)]);
        let restore = Restore { plan: Some(plan), layout: layout.clone(), segments, mark: 0 };
        self.plans.insert(step.name.clone(), restore);
        Ok(answers)
    }

    fn restore(&mut self, step: &Step) -> Result<Answers> {
        let restore = self.plans.get_mut(&step.name).expect("a plan");
        if step.operation == "start" {
            restore.mark = step.number("mark");
            return restore.start(step);
        }
        let plan = restore.plan.as_ref().expect("not waited for yet");
        match step.operation.as_str() {
            "cancel" => plan.cancel(),
            "poll" => return Ok(members("kvstrata_plan_result", &plan.poll()?)),
            _ => {
                let timeout = if step.value("timeout").is_some() { step.number("timeout") } else { u64::MAX };
                let result = plan.wait(timeout)?;
                let answers = members("kvstrata_plan_result", &result).and("plan_status", result.status);
                return Ok(if step.asked.iter().any(|key| key == "wrong") {
                    answers.and("wrong", restore.wrong(result.snapshot_position)?)
                } else {
                    answers
                });
            }
        }
        Ok(Answers::Nothing)
    }

    fn pin(&mut self, step: &Step) -> Result<Answers> {
        if step.operation == "pin" {
            let pin = self.matches[step.value("match").unwrap_or("")].0.pin()?;
            let answers = members("kvstrata_pin_info", &pin.info()?);
            self.pins.insert(step.name.clone(), pin);
            return Ok(answers);
        }
        let pin = &self.pins[&step.name];
        let count = pin.info()?.range_count;
        let ranges = (0..count).map(|index| pin.range(index)).collect::<Result<Vec<PinRange<'_>>>>()?;
        let mut wrong = 0;
        for range in ranges.iter().filter(|range| range.rows != 0) {
            let row_bytes = range.bytes.len() as u64 / range.rows;
            let expected = fill(step.number("mark"), range.stream.into(), 0, range.first_row, range.rows, row_bytes);
            wrong += expected.iter().zip(range.bytes).filter(|(a, b)| a != b).count();
        }
        Ok(Answers::Words(vec![
            word("streams", joined(ranges.iter().map(|range| range.stream))),
            word("first_rows", joined(ranges.iter().map(|range| range.first_row))),
            word("rows", joined(ranges.iter().map(|range| range.rows))),
            word("bytes", ranges.iter().map(|range| range.bytes.len()).sum::<usize>()),
            word("wrong", wrong),
        ]))
    }

    fn release(&mut self, name: &str) -> Answers {
        self.pins.remove(name);
        self.plans.remove(name);
        self.matches.remove(name);
        self.spaces.remove(name);
        self.caches.remove(name);
        self.layouts.remove(name);
        Answers::Nothing
    }
}

impl Restore {
    fn is_rows(&self, stream: u32) -> Result<bool> {
        Ok(self.layout.stream(stream)?.kind == sys::KVSTRATA_STREAM_ROWS)
    }
    fn start(&mut self, step: &Step) -> Result<Answers> {
        let mut buffers = Vec::new();
        for (index, segment) in self.segments.iter().enumerate() {
            let size = segment.bytes as usize;
            let mut buffer = Buffer::linear(segment.stream, vec![UNTOUCHED; size + 2 * GUARD]);
            buffer.range = GUARD..GUARD + size - if index == 0 { step.number("short") as usize } else { 0 };
            let first_row = if self.is_rows(segment.stream)? { segment.first_row } else { 0 };
            buffer.form = Form::Linear { first_row, row_stride: 0 };
            buffers.push(buffer);
        }
        buffers.truncate(buffers.len() - step.number("leave_out") as usize);
        let plan = self.plan.as_mut().expect("not waited for yet");
        plan.start(buffers).map_err(|(error, _)| error)?;
        Ok(Answers::Nothing)
    }
    /// Takes the memory back from the plan and compares it with the rule.
    fn wrong(&mut self, snapshot_position: u64) -> Result<usize> {
        let mut wrong = 0;
        let memory = self.plan.take().expect("not waited for yet").into_destinations();
        for (segment, buffer) in self.segments.iter().zip(memory) {
            let (at, first) =
                if self.is_rows(segment.stream)? { (0, segment.first_row) } else { (snapshot_position, 0) };
            let row_bytes = segment.bytes / segment.rows;
            let mut expected = vec![UNTOUCHED; GUARD];
            expected.extend(fill(self.mark, segment.stream.into(), at, first, segment.rows, row_bytes));
            expected.extend([UNTOUCHED; GUARD]);
            wrong += expected.iter().zip(&buffer.memory).filter(|(a, b)| a != b).count();
        }
        Ok(wrong)
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        // Nothing waits for ever.
        for store in self.stores.values() {
            store.let_go();
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&words[1]).expect("the cases");
    let fresh = || {
        let mut case = Case::default();
        case.folder = words[2].clone().into();
        case
    };
    let (mut case, mut name, mut answers) = (fresh(), String::new(), Vec::new());
    let print = |name: &str, answers: &[String]| {
        if !name.is_empty() {
            println!("{name}: {}", answers.join(" | "));
        }
    };
    for step in text.lines().filter_map(Step::parse) {
        if step.operation == "case" {
            print(&name, &answers);
            (case, name) = (fresh(), step.name);
            answers.clear();
        } else {
            answers.push(case.run(&step));
        }
    }
    print(&name, &answers);
    drop(case);
}
