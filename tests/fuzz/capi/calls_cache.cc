// SPDX-License-Identifier: Apache-2.0
// Calls on caches and namespaces.
#include <array>
#include <vector>

#include "tests/fuzz/capi/session.h"

namespace kvstrata::fuzz {

void Session::CacheOpen() {
  auto options = Sized<kvstrata_cache_options>();
  options.flags = static_cast<uint32_t>(in_.Choice({0, 0, 0, KVSTRATA_CACHE_READ_ONLY}));
  options.capacity_bytes = in_.OneIn(2) ? 1 << 20 : in_.Number(60'000);
  if (in_.OneIn(3)) {
    options.snapshot_bytes = in_.Number(20'000);
    options.staging_bytes = in_.Number(20'000);
    options.lease_bytes = in_.Number(20'000);
    options.lease_ms = in_.Number(20);
    options.max_blocks = in_.Number32(20);
    options.io_threads = in_.OneIn(24) ? in_.Number32(100) : in_.Number32(2);
    options.eviction_policy = in_.Choice({KVSTRATA_EVICT_LRU, KVSTRATA_EVICT_FREQUENCY});
    options.admission = in_.Choice({KVSTRATA_ADMIT_ALWAYS, KVSTRATA_ADMIT_SECOND_SIGHT});
    options.high_percent = in_.Number32(110);
    options.low_percent = in_.Number32(110);
    options.ghost_bytes = in_.Number(20'000);
    options.keep_free_bytes = in_.OneIn(8) ? in_.Number(9) : 0;
  }
  options.io_timeout_ms = 1 + in_.Number(40);
  StoreInUse* store = in_.OneIn(2) ? &FreeStore() : nullptr;
  kvstrata_storage table{};
  if (store != nullptr) table = c_store_table(store->store.get());
  if (in_.OneIn(32)) table.abi_version = in_.Number32(3);
  const Input<kvstrata_storage> storage(in_, table);
  const Input<kvstrata_device> device(in_, *device_.table());
  const Input<kvstrata_allocator> allocator(in_, *allocator_.table());
  options.storage = store != nullptr ? storage.get() : nullptr;
  options.device = in_.OneIn(3) ? device.get() : nullptr;
  options.allocator = in_.OneIn(3) ? allocator.get() : nullptr;
  // Nothing can be made at these: a store in a directory has tests of its own.
  static constexpr std::array<const char*, 3> kPaths = {"", "/proc/no/store/here", "/dev/null"};
  if (in_.OneIn(16)) options.path = kPaths[in_.Below(kPaths.size())];
  const Input<kvstrata_cache_options> input(in_, options);
  ErrorOutput error(in_);
  kvstrata_cache* made = Stray<kvstrata_cache>();
  const kvstrata_status status = kvstrata_cache_open(input.get(), OrNull(&made), error.get());
  if (status == KVSTRATA_OK && store != nullptr &&
      input.get()->struct_size > offsetof(kvstrata_cache_options, storage)) {
    if (options.storage != nullptr) store->opened += 1;
  }
  Take("kvstrata_cache_open", status, error, made, caches_);
}

void Session::CacheClose() {
  LetGo();
  OutputStruct<kvstrata_close_info> info(in_);
  ErrorOutput error(in_);
  // Not closed as often as it is asked: most of what there is to find needs an open one.
  kvstrata_cache* cache = in_.OneIn(3) ? caches_.Pick(in_) : nullptr;
  const kvstrata_status status = kvstrata_cache_close(cache, in_.Number(50), info.get(), error.get());
  Judge("kvstrata_cache_close", status, error, {&info});
}

void Session::CacheAsk() {
  OutputStruct<kvstrata_stats> stats(in_);
  ErrorOutput error(in_);
  Judge("kvstrata_cache_stats", kvstrata_cache_stats(caches_.Pick(in_), stats.get(), error.get()), error, {&stats});
}

void Session::CacheEvents() {
  // Output elements with a told size, as InputArray makes them for input.
  const uint64_t room = in_.Below(6);
  const InputArray<kvstrata_event> events(in_, std::vector<kvstrata_event>(room, Sized<kvstrata_event>()));
  const uint64_t capacity = std::min(events.count(), room);
  OutputArray<uint64_t> count(in_, 1, 77);
  OutputArray<uint64_t> next(in_, 1, 77);
  ErrorOutput error(in_);
  Judge("kvstrata_cache_events",
        kvstrata_cache_events(caches_.Pick(in_), in_.Number(20), const_cast<kvstrata_event*>(events.get()), capacity,
                              events.stride(), count.get(), next.get(), error.get()),
        error, {&count, &next});
  if (count.size() != 0 && count.values()[0] != 77) {
    Promise(count.values()[0] <= capacity, "kvstrata_cache_events", "counts more than there is room for");
  }
}

void Session::CacheWork() {
  LetGo();
  kvstrata_cache* cache = caches_.Pick(in_);
  ErrorOutput error(in_);
  OutputArray<uint64_t> number(in_, 1, 77);
  switch (in_.Below(4)) {
    case 0: {
      OutputStruct<kvstrata_verify_info> info(in_);
      const bool stops = in_.OneIn(4);
      const kvstrata_progress_fn stop = [](void*, uint64_t, uint64_t) -> int32_t { return 1; };
      return Judge("kvstrata_cache_verify",
                   kvstrata_cache_verify(cache, stops ? stop : nullptr, nullptr, info.get(), error.get()), error,
                   {&info});
    }
    case 1:
      return Judge("kvstrata_cache_trim", kvstrata_cache_trim(cache, in_.Number(20'000), number.get(), error.get()),
                   error, {&number});
    case 2: return Judge("kvstrata_cache_sync", kvstrata_cache_sync(cache, error.get()), error);
    default:
      return Judge("kvstrata_cache_purge_foreign", kvstrata_cache_purge_foreign(cache, number.get(), error.get()),
                   error, {&number});
  }
}

void Session::NamespaceOpen() {
  static constexpr std::array<const char*, 8> kNames = {
      "model.weights",      "tenant", "adapter", "engine.state_version",
      "model.quantization", "rope",   "packing", "kernel.numerics"};
  std::vector<kvstrata_identity_field> fields;
  for (const char* name : kNames) {
    auto field = Sized<kvstrata_identity_field>();
    field.name = in_.OneIn(64) ? nullptr : in_.OneIn(64) ? "Not A Name" : name;
    field.bytes = in_.OneIn(64) ? nullptr : "one value or other";
    field.size = in_.Count(3);
    fields.push_back(field);
  }
  if (in_.OneIn(16)) fields.resize(in_.Below(fields.size()));
  const InputArray<kvstrata_identity_field> array(in_, fields);
  auto options = Sized<kvstrata_namespace_options>();
  options.flags = static_cast<uint32_t>(in_.Choice({0, 0, 0, KVSTRATA_NAMESPACE_MUST_EXIST}));
  options.layout = layouts_.Pick(in_);
  options.fields = array.get();
  options.field_count = array.count();
  options.field_stride = array.stride();
  if (in_.OneIn(4)) {
    options.snapshot_policy = in_.Number32(31);
    options.snapshot_every_tokens = in_.Number32(16);
  }
  if (in_.OneIn(2)) {
    options.compress = in_.OneIn(16) ? in_.Number32(UINT32_MAX) : in_.Number32(KVSTRATA_COMPRESS_ALL);
    options.pack = in_.OneIn(16) ? in_.Number32(UINT32_MAX) : in_.Number32(31);
  }
  const Input<kvstrata_namespace_options> input(in_, options);
  ErrorOutput error(in_);
  kvstrata_namespace* made = Stray<kvstrata_namespace>();
  const kvstrata_status status = kvstrata_namespace_open(caches_.Pick(in_), input.get(), OrNull(&made), error.get());
  if (status == KVSTRATA_OK) fed_streams_ = Streams(options.layout);
  Take("kvstrata_namespace_open", status, error, made, spaces_);
}

void Session::NamespaceWork() {
  LetGo();
  kvstrata_namespace* space = spaces_.Pick(in_);
  ErrorOutput error(in_);
  if (in_.OneIn(3)) return Judge("kvstrata_namespace_drop", kvstrata_namespace_drop(space, error.get()), error);
  OutputStruct<kvstrata_namespace_info> info(in_);
  Judge("kvstrata_namespace_get_info", kvstrata_namespace_get_info(space, info.get(), error.get()), error, {&info});
}

}  // namespace kvstrata::fuzz
