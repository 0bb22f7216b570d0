// SPDX-License-Identifier: Apache-2.0
// Steps on layouts, stores, caches and namespaces.
#include "tests/conformance/cpp/case.h"

namespace kvstrata::conformance {
namespace {

result<layout> CreateLayout(const Step& step) {
  const std::string create = *step.Value("create");
  const std::size_t comma = create.find(',');
  const std::vector<std::uint32_t> n = Numbers(create.substr(comma + 1));
  layout_builder builder;
  builder.family(create.substr(0, comma)).block_tokens(n.at(0)).numeric_profile(static_cast<profile>(n.at(1)));
  builder.replay(static_cast<replay_mode>(n.at(2)), n.at(3), n.at(4));
  for (const auto& [key, value] : step.given) {
    if (key != "stream") continue;
    const std::vector<std::uint32_t> s = Numbers(value);
    auto stream = detail::sized<kvstrata_stream>();
    stream.kind = static_cast<std::int32_t>(s.at(0));
    stream.role = static_cast<std::int32_t>(s.at(1));
    stream.layer = s.at(2);
    stream.ratio = s.at(3);
    stream.row_bytes = s.at(4);
    stream.state_rows = s.at(5);
    stream.packing = static_cast<std::int32_t>(s.at(6));
    stream.flags = s.at(7);
    builder.stream(stream);
  }
  return builder.build();
}

result<layout> LayoutOf(const Step& step) {
  preset_options options;
  options.block_tokens = static_cast<std::uint32_t>(step.Number("block_tokens"));
  options.rows = static_cast<std::int32_t>(step.Number("rows"));
  options.index_keys = static_cast<std::int32_t>(step.Number("index_keys"));
  options.include_draft = step.Number("include_draft") != 0;
  if (const auto name = step.Value("preset")) return layout::from_preset(name->c_str(), options);
  if (const auto text = step.Value("text")) return layout::from_text(Plain(*text));
  if (const auto text = step.Value("config")) return layout::from_config(Plain(*text), options);
  if (const auto words = step.Value("opaque")) return layout::opaque(Numbers(*words).at(0));
  if (const auto words = step.Value("gqa")) {
    const std::vector<std::uint32_t> n = Numbers(*words);
    return layout::gqa(n.at(0), n.at(1), n.at(2), n.at(3), n.at(4));
  }
  if (const auto words = step.Value("mla")) {
    const std::vector<std::uint32_t> n = Numbers(*words);
    return layout::mla(n.at(0), n.at(1), n.at(2));
  }
  return CreateLayout(step);
}

}  // namespace

result<Answers> Case::MakeLayout(const Step& step) {
  result<layout> made = LayoutOf(step);
  if (!made) return made.error();
  const Layout kept = std::make_shared<layout>(std::move(*made));
  layouts_[step.name] = kept;
  const result<layout_info> info = kept->info();
  if (!info) return info.error();
  Answers out("kvstrata_layout_info", *info);
  const result<std::string> text = kept->text();
  if (!text) return text.error();
  out.Add("text", Escaped(*text));
  for (const std::string& key : step.asked) {
    const std::size_t colon = key.find(':');
    if (colon == std::string::npos) continue;
    const std::vector<std::uint32_t> n = Numbers(key.substr(colon + 1));
    const result<std::uint64_t> number =
        key.rfind("rows:", 0) == 0 ? kept->rows_at(n.at(0), n.at(1)) : kept->snapshot_bytes(n.at(0));
    if (!number) return number.error();
    out.Add(key, *number);
  }
  return out;
}

result<Answers> Case::MakeStore(const Step& step) {
  stores_[step.name] = std::make_shared<Store>(step.Number("capabilities"));
  return Answers();
}

result<Answers> Case::ChangeStore(const Step& step) {
  Store& store = *stores_.at(step.name);
  if (step.operation == "hold") store.Hold(step.Value("kind") == "put");
  if (step.operation == "let_go") store.LetGo();
  if (step.operation == "fail") store.Fail(*step.Value("call"), static_cast<errc>(step.Number("code")));
  if (step.operation == "damage") store.Damage(step.Number("bytes"));
  if (step.operation == "wipe") store.Wipe();
  if (step.operation == "swap") store.Swap();
  return Answers();
}

result<Answers> Case::Look(const Step& step) {
  const Store::Counts counts = stores_.at(step.name)->Look();
  Answers out;
  return out.Add("records", counts.records).Add("destroyed", counts.destroyed).Add("held", counts.held);
}

result<Answers> Case::OpenCache(const Step& step) {
  cache_options options;
  if (const auto path = step.Value("path")) options.path = folder_ + "/" + *path;
  options.read_only = step.Number("read_only") != 0;
  options.capacity_bytes = step.Number("capacity_bytes");
  options.snapshot_bytes = step.Number("snapshot_bytes");
  options.staging_bytes = step.Number("staging_bytes");
  options.lease_bytes = step.Number("lease_bytes");
  options.lease_ms = step.Number("lease_ms");
  options.io_timeout_ms = step.Number("io_timeout_ms");
  options.io_threads = static_cast<std::uint32_t>(step.Number("io_threads"));
  options.max_blocks = static_cast<std::uint32_t>(step.Number("max_blocks"));
  options.eviction = static_cast<eviction_policy>(step.Number("eviction_policy"));
  options.admit = static_cast<admission>(step.Number("admission"));
  options.high_percent = static_cast<std::uint32_t>(step.Number("high_percent"));
  options.low_percent = static_cast<std::uint32_t>(step.Number("low_percent"));
  options.ghost_bytes = step.Number("ghost_bytes");
  options.keep_free_bytes = step.Number("keep_free_bytes");
  options.lane = step.Number("lane");
  options.memory_bytes = step.Number("memory_bytes");
  options.memory_dirty_bytes = step.Number("memory_dirty_bytes");
  options.memory_write = static_cast<write_policy>(step.Number("memory_write"));
  options.memory_promotion = static_cast<promotion>(step.Number("memory_promotion"));
  if (!step.Value("storage")) {
    result<cache> made = cache::open(options);
    if (!made) return made.error();
    caches_[step.name] = std::move(*made);
    return Answers();
  }
  auto table = std::make_unique<Table>(stores_.at(*step.Value("storage")));
  Table* const kept = table.get();
  storage_adapter<Table> adapter(std::move(table));
  result<cache> made = cache::open(options, adapter);
  if (!made) return made.error();
  kept->Opened();  // the cache's now, and alive as long as it
  caches_[step.name] = std::move(*made);
  return Answers();
}

result<Answers> Case::OpenNamespace(const Step& step) {
  std::map<std::string, std::string> values;
  for (const char* name : {"model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version",
                           "kernel.numerics", "tenant"}) {
    values[name] = std::string("kvstrata ") + name;
  }
  for (const auto& [key, value] : step.given) {
    if (key.rfind("set.", 0) == 0) values[key.substr(4)] = Plain(value);
    if (key.rfind("drop.", 0) == 0) values.erase(key.substr(5));
  }
  identity who;
  for (const auto& [name, value] : values) who.set(name, value);
  namespace_options options;
  options.must_exist = step.Number("must_exist") != 0;
  options.snapshot_policy = static_cast<std::uint32_t>(step.Number("policy"));
  options.snapshot_every_tokens = static_cast<std::uint32_t>(step.Number("every"));
  options.compress = static_cast<std::uint32_t>(step.Number("compress"));
  options.pack = static_cast<std::uint32_t>(step.Number("pack"));
  const Layout what = layouts_.at(*step.Value("layout"));
  result<name_space> made = caches_.at(*step.Value("cache")).open_namespace(*what, who, options);
  if (!made) return made.error();
  spaces_[step.name] = Space{std::move(*made), what};
  return Info(step);
}

result<Answers> Case::Info(const Step& step) {
  const result<namespace_info> info = spaces_.at(step.name).handle.info();
  if (!info) return info.error();
  return Answers("kvstrata_namespace_info", *info);
}

result<Answers> Case::Drop(const Step& step) {
  const result<void> done = spaces_.at(step.name).handle.drop();
  if (!done) return done.error();
  return Answers();
}

result<Answers> Case::Release(const Step& step) {
  pins_.erase(step.name);
  plans_.erase(step.name);
  matches_.erase(step.name);
  spaces_.erase(step.name);
  caches_.erase(step.name);
  layouts_.erase(step.name);
  return Answers();
}

result<Answers> Case::Stats(const Step& step) {
  const result<cache_stats> stats = caches_.at(step.name).stats();
  if (!stats) return stats.error();
  return Answers("kvstrata_stats", *stats);
}

result<Answers> Case::Close(const Step& step) {
  const result<close_info> info = caches_.at(step.name).close(step.Number("timeout"));
  if (!info) return info.error();
  return Answers("kvstrata_close_info", *info);
}

result<Answers> Case::Events(const Step& step) {
  std::uint64_t from = step.Number("from");
  const result<std::vector<cache_event>> events = caches_.at(step.name).events(from);
  if (!events) return events.error();
  std::string kinds, positions, digests;
  for (const cache_event& event : *events) {
    const char* const comma = kinds.empty() ? "" : ",";
    kinds += comma + std::to_string(event.kind);
    positions += comma + std::to_string(event.position);
    digests += comma + Hex(event.digest, sizeof event.digest);
  }
  Answers out;
  out.Add("count", events->size()).Add("next", from);
  return out.Add("kinds", kinds).Add("positions", positions).Add("digests", digests);
}

result<Answers> Case::Trim(const Step& step) {
  const result<std::uint64_t> held = caches_.at(step.name).trim(step.Number("bytes"));
  if (!held) return held.error();
  return Answers().Add("held", *held);
}

result<Answers> Case::Purge(const Step& step) {
  const result<std::uint64_t> bytes = caches_.at(step.name).purge_foreign();
  if (!bytes) return bytes.error();
  return Answers().Add("bytes", *bytes);
}

result<Answers> Case::Sync(const Step& step) {
  const result<void> done = caches_.at(step.name).sync();
  if (!done) return done.error();
  return Answers();
}

result<Answers> Case::Verify(const Step& step) {
  const bool stop = step.Number("stop") != 0;
  const result<verify_info> info = caches_.at(step.name).verify([stop](std::uint64_t, std::uint64_t) { return !stop; });
  if (!info) return info.error();
  return Answers("kvstrata_verify_info", *info);
}

result<Answers> Case::Status(const Step& step) {
  return Answers().Add("name", std::string(status_name(static_cast<errc>(step.Number("code")))));
}

result<Answers> Case::Version(const Step&) {
  return Answers().Add("abi", kvstrata_abi_version()).Add("format", kvstrata_format_version());
}

}  // namespace kvstrata::conformance
