// SPDX-License-Identifier: Apache-2.0
// Cache and namespace handles.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "capi/handles.h"
#include "capi/row_packers.h"
#include "capi/shim_storage.h"
#include "capi/struct_reader.h"
#include "lib/storage/memory.h"
#include "lib/storage/segment/lane_storage.h"
#include "lib/storage/tiered.h"

namespace kvstrata::capi {
namespace {

namespace plan = kvstrata::core::plan;
namespace trie = kvstrata::core::trie;

constexpr uint64_t kDefaultCloseMs = 30'000;

std::chrono::milliseconds Milliseconds(uint64_t ms, uint64_t fallback) {
  // A century: longer ones would overflow a clock.
  constexpr uint64_t kMost = uint64_t{100} * 365 * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::min(ms == 0 ? fallback : ms, kMost));
}

absl::StatusOr<uint32_t> ReadLane(uint64_t lane) {
  if (lane == UINT64_MAX) return storage::kAnyLane;
  if (lane < storage::kMaxLanes) return static_cast<uint32_t>(lane);
  return base::InvalidArgument("options.lane", std::to_string(lane) + " > " + std::to_string(storage::kMaxLanes - 1));
}

// The storage that the options name; `caller` is set when it is the caller's own.
absl::StatusOr<std::shared_ptr<storage::Storage>> OpenStorage(const kvstrata_cache_options& options,
                                                              std::shared_ptr<CallerStorage>* caller) {
  if (options.storage != nullptr) {
    if (options.path != nullptr) return base::InvalidArgument("options.path", "given together with a storage");
    if (options.lane != 0) return base::InvalidArgument("options.lane", "given together with a storage");
    absl::StatusOr<std::shared_ptr<CallerStorage>> made = CallerStorage::Create(options.storage);
    if (!made.ok()) return made.status();
    *caller = *made;
    return std::shared_ptr<storage::Storage>(*made);
  }
  const bool read_only = (options.flags & KVSTRATA_CACHE_READ_ONLY) != 0;
  if (options.path == nullptr) {
    if (options.lane != 0) return base::InvalidArgument("options.lane", "given without a path");
    if (read_only) return base::InvalidArgument("options.flags", "a store in memory cannot be opened read-only");
    storage::MemoryOptions memory;
    // The engine keeps its own, tighter account; this only leaves room for a record that replaces another.
    memory.capacity_bytes = options.capacity_bytes > UINT64_MAX / 2 ? UINT64_MAX : options.capacity_bytes * 2;
    return std::shared_ptr<storage::Storage>(std::make_shared<storage::MemoryStorage>(memory));
  }
  const absl::StatusOr<uint32_t> lane = ReadLane(options.lane);
  if (!lane.ok()) return lane.status();
  storage::SegmentOptions segment;
  segment.path = options.path;
  segment.read_only = read_only;
  segment.capacity_bytes = options.capacity_bytes;
  segment.keep_free_bytes = options.keep_free_bytes;
  if (options.io_threads != 0) segment.io_threads = options.io_threads;
  absl::StatusOr<std::unique_ptr<storage::LaneStorage>> opened = storage::LaneStorage::Open(segment, *lane);
  if (!opened.ok()) return opened.status();
  return std::shared_ptr<storage::Storage>(*std::move(opened));
}

// What decides who stays and who comes.
absl::Status ReadSpaceOptions(const kvstrata_cache_options& options, engine::CacheOptions* cache) {
  switch (options.eviction_policy) {
    case KVSTRATA_EVICT_LRU: cache->eviction_policy = trie::EvictionPolicy::kLru; break;
    case KVSTRATA_EVICT_FREQUENCY: cache->eviction_policy = trie::EvictionPolicy::kFrequency; break;
    default: return base::InvalidArgument("options.eviction_policy", std::to_string(options.eviction_policy));
  }
  if (options.admission != KVSTRATA_ADMIT_ALWAYS && options.admission != KVSTRATA_ADMIT_SECOND_SIGHT) {
    return base::InvalidArgument("options.admission", std::to_string(options.admission));
  }
  cache->second_sight = options.admission == KVSTRATA_ADMIT_SECOND_SIGHT;
  cache->high_percent = options.high_percent;
  cache->low_percent = options.low_percent;
  cache->ghost_bytes = options.ghost_bytes;
  // The store at `path` keeps its floor itself.
  cache->keep_free_bytes = options.path == nullptr ? options.keep_free_bytes : 0;
  return absl::OkStatus();
}

// The tier of memory, checked as far as the options go; `lower` and `allocator` are still missing.
absl::StatusOr<storage::TieredOptions> ReadTierOptions(const kvstrata_cache_options& options) {
  storage::TieredOptions tier;
  tier.memory_bytes = options.memory_bytes;
  tier.dirty_bytes = options.memory_dirty_bytes;
  switch (options.memory_write) {
    case KVSTRATA_WRITE_THROUGH: tier.write = storage::WritePolicy::kThrough; break;
    case KVSTRATA_WRITE_BACK: tier.write = storage::WritePolicy::kBack; break;
    default: return base::InvalidArgument("options.memory_write", std::to_string(options.memory_write));
  }
  switch (options.memory_promotion) {
    case KVSTRATA_PROMOTE_ON_HIT: tier.promotion = storage::Promotion::kAlways; break;
    case KVSTRATA_PROMOTE_ON_SECOND_HIT: tier.promotion = storage::Promotion::kSecondHit; break;
    case KVSTRATA_PROMOTE_NEVER: tier.promotion = storage::Promotion::kNever; break;
    default: return base::InvalidArgument("options.memory_promotion", std::to_string(options.memory_promotion));
  }
  if (options.memory_dirty_bytes > options.memory_bytes) {
    return base::InvalidArgument("options.memory_dirty_bytes",
                                 std::to_string(options.memory_dirty_bytes) + " > memory_bytes");
  }
  if (options.memory_bytes == 0) {
    if (options.memory_write == 0 && options.memory_promotion == 0) return tier;
    return base::InvalidArgument("options.memory_bytes", "0 with a rule for the tier of memory");
  }
  if (options.path == nullptr && options.storage == nullptr) {
    return base::InvalidArgument("options.memory_bytes", "a store in memory has no tier of memory over it");
  }
  return tier;
}

// Puts the tier of memory over `lower`, if there is to be one.
absl::StatusOr<std::shared_ptr<storage::Storage>> AddTier(storage::TieredOptions tier,
                                                          std::shared_ptr<storage::Storage> lower,
                                                          std::shared_ptr<CallerAllocator> allocator) {
  if (tier.memory_bytes == 0) return lower;
  tier.lower = std::move(lower);
  tier.allocator = std::move(allocator);
  absl::StatusOr<std::unique_ptr<storage::TieredStorage>> made = storage::TieredStorage::Open(std::move(tier));
  if (!made.ok()) return made.status();
  return std::shared_ptr<storage::Storage>(*std::move(made));
}

absl::Status OpenCache(const kvstrata_cache_options* given, kvstrata_cache** out) {
  if (out == nullptr) return base::InvalidArgument("out", "NULL");
  const absl::StatusOr<kvstrata_cache_options> options = ReadStruct<kvstrata_cache_options>(given, "options");
  if (!options.ok()) return options.status();
  if ((options->flags & ~uint32_t{KVSTRATA_CACHE_READ_ONLY}) != 0) {
    return base::InvalidArgument("options.flags", std::to_string(options->flags));
  }
  if (options->io_threads > 64) {
    return base::InvalidArgument("options.io_threads", std::to_string(options->io_threads) + " > 64");
  }
  engine::CacheOptions cache;
  cache.find_packer = &FindRowPacker;
  cache.read_only = (options->flags & KVSTRATA_CACHE_READ_ONLY) != 0;
  if (!cache.read_only && options->capacity_bytes == 0) {
    return base::InvalidArgument("options.capacity_bytes", "0: a byte budget is required");
  }
  cache.capacity_bytes = options->capacity_bytes;
  cache.snapshot_bytes = options->snapshot_bytes;
  cache.staging_bytes = options->staging_bytes;
  cache.lease_bytes = options->lease_bytes;
  cache.lease_ms = options->lease_ms;
  cache.io_timeout_ms = options->io_timeout_ms;
  cache.threads = options->io_threads;
  cache.max_blocks = options->max_blocks;
  if (absl::Status status = ReadSpaceOptions(*options, &cache); !status.ok()) return status;
  absl::StatusOr<storage::TieredOptions> tier = ReadTierOptions(*options);
  if (!tier.ok()) return tier.status();
  std::shared_ptr<CallerAllocator> allocator;
  if (options->allocator != nullptr) {
    absl::StatusOr<std::shared_ptr<CallerAllocator>> created = CallerAllocator::Create(options->allocator);
    if (!created.ok()) return created.status();
    allocator = *std::move(created);
    cache.allocator = allocator.get();
    cache.keep_alive = allocator;
  }
  std::shared_ptr<CallerDevice> device;
  if (options->device != nullptr) {
    absl::StatusOr<std::shared_ptr<CallerDevice>> made = CallerDevice::Create(options->device);
    if (!made.ok()) return made.status();
    device = *made;
    cache.device = device;
  }
  std::shared_ptr<CallerStorage> caller_storage;
  absl::StatusOr<std::shared_ptr<storage::Storage>> opened = OpenStorage(*options, &caller_storage);
  if (!opened.ok()) return opened.status();
  opened = AddTier(*std::move(tier), *std::move(opened), std::move(allocator));
  if (!opened.ok()) return opened.status();
  cache.storage = *std::move(opened);
  absl::StatusOr<std::shared_ptr<engine::Cache>> made = engine::Cache::Open(std::move(cache));
  if (!made.ok()) return made.status();
  auto handle = std::make_unique<kvstrata_cache>(kvstrata_cache{*std::move(made)});
  if (caller_storage != nullptr) caller_storage->Adopt();
  if (device != nullptr) device->Adopt();
  *out = handle.release();
  return absl::OkStatus();
}

void FillStats(const engine::Stats& stats, kvstrata_stats* out) {
  // The same members in the same order, behind struct_size and reserved0: see lib/engine/stats.h.
  static_assert(sizeof(engine::Stats) + 2 * sizeof(uint32_t) == sizeof(kvstrata_stats));
  std::memcpy(reinterpret_cast<unsigned char*>(out) + 2 * sizeof(uint32_t), &stats, sizeof(stats));
}

absl::Status GetEvents(kvstrata_cache* cache, uint64_t from, kvstrata_event* events, uint64_t capacity, uint64_t stride,
                       uint64_t* out_count, uint64_t* out_next) {
  if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
  if (out_count == nullptr || out_next == nullptr) return base::InvalidArgument("out_count or out_next", "NULL");
  if (events == nullptr && capacity > 0) return base::InvalidArgument("events", "NULL with a capacity");
  if (absl::Status status = cache->cache->CheckUsable(); !status.ok()) return status;
  const size_t limit = std::min<uint64_t>(capacity, engine::EventRing::kCapacity);
  const absl::StatusOr<uint64_t> step = limit == 0 ? 0 : StepOf(events, stride, "events");
  if (!step.ok()) return step.status();
  auto* bytes = reinterpret_cast<unsigned char*>(events);
  for (size_t i = 0; i < limit; ++i) {
    const std::string name = "events[" + std::to_string(i) + "]";
    if (absl::Status status = CheckOutput(bytes + i * *step, name); !status.ok()) return status;
    if (absl::Status status = CheckElement(bytes + i * *step, *step, name); !status.ok()) return status;
  }
  uint64_t next = 0;
  const std::vector<engine::Event> read = cache->cache->Events(from, limit, &next);
  for (size_t i = 0; i < read.size(); ++i) {
    kvstrata_event event{};
    event.kind = static_cast<int32_t>(read[i].kind);
    event.sequence = read[i].sequence;
    std::memcpy(event.namespace_id, read[i].name_space.data(), sizeof(event.namespace_id));
    std::memcpy(event.digest, &read[i].digest, sizeof(event.digest));
    event.position = read[i].position;
    event.bytes = read[i].bytes;
    WriteStruct(event, bytes + i * *step);
  }
  *out_count = read.size();
  *out_next = next;
  return absl::OkStatus();
}

absl::StatusOr<plan::SnapshotPolicy> ReadPolicy(const kvstrata_namespace_options& options) {
  constexpr uint32_t kKnown = KVSTRATA_SNAPSHOT_PROMPT_END | KVSTRATA_SNAPSHOT_OUTPUT_END | KVSTRATA_SNAPSHOT_EVERY_N |
                              KVSTRATA_SNAPSHOT_COMMON_PREFIX | KVSTRATA_SNAPSHOT_NEVER;
  const uint32_t flags = options.snapshot_policy;
  const std::string text = std::to_string(flags);
  if ((flags & ~kKnown) != 0) return base::InvalidArgument("options.snapshot_policy", text + " has unknown bits");
  const bool every = (flags & KVSTRATA_SNAPSHOT_EVERY_N) != 0;
  if (every != (options.snapshot_every_tokens != 0)) {
    return base::InvalidArgument("options.snapshot_every_tokens", "goes with KVSTRATA_SNAPSHOT_EVERY_N");
  }
  if ((flags & KVSTRATA_SNAPSHOT_NEVER) != 0) {
    if (flags != KVSTRATA_SNAPSHOT_NEVER) return base::InvalidArgument("options.snapshot_policy", text);
    return plan::SnapshotPolicy::Zero();
  }
  if (flags == 0) return plan::SnapshotPolicy::Ends();
  plan::SnapshotPolicy policy;
  policy.at_prompt_end = (flags & KVSTRATA_SNAPSHOT_PROMPT_END) != 0;
  policy.at_output_end = (flags & KVSTRATA_SNAPSHOT_OUTPUT_END) != 0;
  policy.at_common_prefix = (flags & KVSTRATA_SNAPSHOT_COMMON_PREFIX) != 0;
  policy.every_tokens = every ? options.snapshot_every_tokens : 0;
  return policy;
}

absl::Status CheckPack(uint32_t pack) {
  const std::string text = std::to_string(pack);
  constexpr uint32_t kKeys = KVSTRATA_PACK_FP8_KEY_132 | KVSTRATA_PACK_FP4_KEY_68;
  constexpr uint32_t kRows = KVSTRATA_PACK_FP8_ROW_584 | KVSTRATA_PACK_FP8_ROW_528 | KVSTRATA_PACK_FP4_ROW_288;
  if ((pack & ~(kKeys | kRows)) != 0) return base::InvalidArgument("options.pack", text + " has unknown bits");
  if (std::popcount(pack & kKeys) > 1 || std::popcount(pack & kRows) > 1) {
    return base::InvalidArgument("options.pack", text + " has two forms for rows of one width");
  }
  return absl::OkStatus();
}

absl::Status OpenNamespace(kvstrata_cache* cache, const kvstrata_namespace_options* given, kvstrata_namespace** out) {
  if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
  if (out == nullptr) return base::InvalidArgument("out", "NULL");
  const absl::StatusOr<kvstrata_namespace_options> options = ReadStruct<kvstrata_namespace_options>(given, "options");
  if (!options.ok()) return options.status();
  if (options->layout == nullptr) return base::InvalidArgument("options.layout", "NULL");
  if ((options->flags & ~uint32_t{KVSTRATA_NAMESPACE_MUST_EXIST}) != 0) {
    return base::InvalidArgument("options.flags", std::to_string(options->flags));
  }
  if ((options->compress & ~uint32_t{KVSTRATA_COMPRESS_ALL}) != 0) {
    return base::InvalidArgument("options.compress", std::to_string(options->compress) + " has unknown bits");
  }
  if (absl::Status status = CheckPack(options->pack); !status.ok()) return status;
  const absl::StatusOr<plan::SnapshotPolicy> policy = ReadPolicy(*options);
  if (!policy.ok()) return policy.status();
  const absl::StatusOr<std::vector<kvstrata_identity_field>> fields = ReadArray<kvstrata_identity_field>(
      options->fields, options->field_count, options->field_stride, layout::kMaxIdentityFields, "options.fields");
  if (!fields.ok()) return fields.status();
  std::vector<layout::FieldView> views;
  for (size_t i = 0; i < fields->size(); ++i) {
    const kvstrata_identity_field& field = (*fields)[i];
    if (field.name == nullptr) {
      return base::InvalidArgument("options.fields[" + std::to_string(i) + "].name", "NULL");
    }
    views.push_back({field.name, field.bytes, field.size});
  }
  absl::StatusOr<layout::Identity> identity = layout::Identity::Create(views);
  if (!identity.ok()) return identity.status();
  auto handle = std::make_unique<kvstrata_namespace>();
  handle->cache = cache->cache;
  handle->policy = *policy;
  handle->compress = options->compress;
  handle->pack = options->pack;
  absl::StatusOr<std::shared_ptr<engine::NameSpace>> opened =
      cache->cache->OpenNamespace(*std::move(identity), options->layout->value,
                                  (options->flags & KVSTRATA_NAMESPACE_MUST_EXIST) != 0, &handle->existed);
  if (!opened.ok()) return opened.status();
  handle->name_space = *std::move(opened);
  *out = handle.release();
  return absl::OkStatus();
}

}  // namespace
}  // namespace kvstrata::capi

using namespace kvstrata::capi;  // the ABI's functions are the only names in this file outside it

extern "C" {

kvstrata_status kvstrata_cache_open(const kvstrata_cache_options* options, kvstrata_cache** out,
                                    kvstrata_error* error) {
  return Fence(error, [&] { return OpenCache(options, out); });
}

kvstrata_status kvstrata_cache_close(kvstrata_cache* cache, uint64_t timeout_ms, kvstrata_close_info* out,
                                     kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
    if (out != nullptr) {
      if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    }
    engine::CloseInfo info;
    const absl::Status status = cache->cache->Close(Milliseconds(timeout_ms, kDefaultCloseMs), &info);
    if (status.ok() && out != nullptr) {
      kvstrata_close_info value{};
      value.dropped_blocks = info.dropped_blocks;
      value.dropped_snapshots = info.dropped_snapshots;
      WriteStruct(value, out);
    }
    return status;
  });
}

void kvstrata_cache_destroy(kvstrata_cache* cache) {
  // A forked child must not touch the parent's locks; what it inherited it leaves alone.
  if (cache == nullptr || !cache->cache->InOwnerProcess()) return;
  // One that was closed before, in time or not, is not waited for again.
  const bool closed = !cache->cache->CheckUsable().ok();
  const auto patience = closed ? std::chrono::milliseconds(0) : Milliseconds(0, kDefaultCloseMs);
  Fence(nullptr, [&] { return cache->cache->Close(patience, nullptr); });
  delete cache;
}

kvstrata_status kvstrata_cache_stats(kvstrata_cache* cache, kvstrata_stats* out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    if (absl::Status status = cache->cache->CheckUsable(); !status.ok()) return status;
    kvstrata_stats stats{};
    FillStats(cache->cache->stats(), &stats);
    WriteStruct(stats, out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_cache_events(kvstrata_cache* cache, uint64_t from_sequence, kvstrata_event* events,
                                      uint64_t capacity, uint64_t stride, uint64_t* out_count, uint64_t* out_next,
                                      kvstrata_error* error) {
  return Fence(error, [&] { return GetEvents(cache, from_sequence, events, capacity, stride, out_count, out_next); });
}

kvstrata_status kvstrata_cache_verify(kvstrata_cache* cache, kvstrata_progress_fn progress, void* user,
                                      kvstrata_verify_info* out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    engine::Progress report;
    if (progress != nullptr) {
      report = [&](uint64_t done, uint64_t total) { return progress(user, done, total) == 0; };
    }
    const absl::StatusOr<engine::VerifyInfo> info = cache->cache->Verify(report);
    if (!info.ok()) return info.status();
    kvstrata_verify_info value{};
    value.records = info->records;
    value.bytes = info->bytes;
    value.corrupt = info->corrupt;
    value.removed = info->removed;
    value.unreadable = info->unreadable;
    WriteStruct(value, out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_cache_trim(kvstrata_cache* cache, uint64_t target_bytes, uint64_t* out_held_bytes,
                                    kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
    const absl::StatusOr<uint64_t> held = cache->cache->Trim(target_bytes);
    if (held.ok() && out_held_bytes != nullptr) *out_held_bytes = *held;
    return held.status();
  });
}

kvstrata_status kvstrata_cache_sync(kvstrata_cache* cache, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
    return cache->cache->Sync();
  });
}

kvstrata_status kvstrata_cache_purge_foreign(kvstrata_cache* cache, uint64_t* out_bytes, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (cache == nullptr) return base::InvalidArgument("cache", "NULL");
    const absl::StatusOr<uint64_t> bytes = cache->cache->PurgeForeign();
    if (bytes.ok() && out_bytes != nullptr) *out_bytes = *bytes;
    return bytes.status();
  });
}

kvstrata_status kvstrata_namespace_open(kvstrata_cache* cache, const kvstrata_namespace_options* options,
                                        kvstrata_namespace** out, kvstrata_error* error) {
  return Fence(error, [&] { return OpenNamespace(cache, options, out); });
}

void kvstrata_namespace_destroy(kvstrata_namespace* name_space) {
  if (name_space == nullptr) return;
  // A forked child must not touch the parent's locks; what it inherited it leaves alone.
  if (!name_space->cache->InOwnerProcess()) return;
  name_space->cache->CloseNamespace(name_space->name_space.get());
  delete name_space;
}

kvstrata_status kvstrata_namespace_get_info(kvstrata_namespace* name_space, kvstrata_namespace_info* out,
                                            kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (name_space == nullptr) return base::InvalidArgument("name_space", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    if (absl::Status status = name_space->cache->CheckUsable(); !status.ok()) return status;
    const engine::NamespaceInfo info = name_space->cache->DescribeNamespace(*name_space->name_space);
    kvstrata_namespace_info value{};
    value.existed = name_space->existed ? 1 : 0;
    std::memcpy(value.id, info.id.data(), sizeof(value.id));
    value.blocks = info.blocks;
    value.snapshots = info.snapshots;
    value.row_bytes = info.row_bytes;
    value.snapshot_bytes = info.snapshot_bytes;
    value.foreign_layout_bytes = info.foreign_layout_bytes;
    const size_t size = std::min(info.nearest_difference.size(), sizeof(value.nearest_difference) - 1);
    std::memcpy(value.nearest_difference, info.nearest_difference.data(), size);
    WriteStruct(value, out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_namespace_drop(kvstrata_namespace* name_space, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (name_space == nullptr) return base::InvalidArgument("name_space", "NULL");
    return name_space->cache->DropNamespace(name_space->name_space);
  });
}

}  // extern "C"
