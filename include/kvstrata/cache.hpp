// SPDX-License-Identifier: Apache-2.0
// kvstrata/cache.hpp - cache, name_space (with its identity) and match. C++17, header-only.
//
// Thread rule: cache and name_space may be used by several threads at once; a match by one at a time. A moved-from
// object is empty. Objects may be destroyed in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvstrata/c_api.h"
#include "kvstrata/handle.hpp"
#include "kvstrata/layout.hpp"
#include "kvstrata/result.hpp"
#include "kvstrata/views.hpp"

namespace kvstrata {
inline namespace v1 {

template <class Impl>
class storage_adapter;  // storage.hpp
class restore_plan;     // plan.hpp
struct plan_options;    // plan.hpp
class writer;           // writer.hpp
struct writer_options;  // writer.hpp

/// How a match resumes; c_api.h section 9 says what is read and what runs again.
enum class resume_mode : std::int32_t {
  none = KVSTRATA_MODE_NONE,
  snapshot = KVSTRATA_MODE_SNAPSHOT,
  snapshot_replay = KVSTRATA_MODE_SNAPSHOT_REPLAY,
  full_replay = KVSTRATA_MODE_FULL_REPLAY,
  bounded_replay = KVSTRATA_MODE_BOUNDED_REPLAY
};

/// The bit of `mode` in lookup_options::allowed_modes.
constexpr std::uint32_t mode_bit(resume_mode mode) noexcept { return 1u << static_cast<std::uint32_t>(mode); }

/// Static text: "snapshot_replay".
constexpr const char* name_of(resume_mode mode) noexcept {
  switch (mode) {
    case resume_mode::none: return "none";
    case resume_mode::snapshot: return "snapshot";
    case resume_mode::snapshot_replay: return "snapshot_replay";
    case resume_mode::full_replay: return "full_replay";
    case resume_mode::bounded_replay: return "bounded_replay";
  }
  return "?";
}

/// Why a match is not longer, or nothing at all.
enum class reason : std::int32_t {
  none = KVSTRATA_REASON_NONE,
  absent = KVSTRATA_REASON_ABSENT,
  diverged = KVSTRATA_REASON_DIVERGED,
  capped = KVSTRATA_REASON_CAPPED,
  shorter_than_block = KVSTRATA_REASON_SHORTER_THAN_BLOCK,
  no_snapshot = KVSTRATA_REASON_NO_SNAPSHOT,
  mode_not_allowed = KVSTRATA_REASON_MODE_NOT_ALLOWED,
  not_worth_it = KVSTRATA_REASON_NOT_WORTH_IT,
  min_gain = KVSTRATA_REASON_MIN_GAIN,
  restart_grid = KVSTRATA_REASON_RESTART_GRID,
  replay_too_long = KVSTRATA_REASON_REPLAY_TOO_LONG,
  held = KVSTRATA_REASON_HELD,
  foreign = KVSTRATA_REASON_FOREIGN,
  corrupt = KVSTRATA_REASON_CORRUPT,
  evicted = KVSTRATA_REASON_EVICTED
};

/// Static text: "not_worth_it".
constexpr const char* name_of(reason why) noexcept {
  switch (why) {
    case reason::none: return "none";
    case reason::absent: return "absent";
    case reason::diverged: return "diverged";
    case reason::capped: return "capped";
    case reason::shorter_than_block: return "shorter_than_block";
    case reason::no_snapshot: return "no_snapshot";
    case reason::mode_not_allowed: return "mode_not_allowed";
    case reason::not_worth_it: return "not_worth_it";
    case reason::min_gain: return "min_gain";
    case reason::restart_grid: return "restart_grid";
    case reason::replay_too_long: return "replay_too_long";
    case reason::held: return "held";
    case reason::foreign: return "foreign";
    case reason::corrupt: return "corrupt";
    case reason::evicted: return "evicted";
  }
  return "?";
}

using cache_stats = kvstrata_stats;
using cache_event = kvstrata_event;
using close_info = kvstrata_close_info;
using verify_info = kvstrata_verify_info;
using namespace_info = kvstrata_namespace_info;
using match_info = kvstrata_match_info;
using pin_info = kvstrata_pin_info;
using pin_range = kvstrata_pin_range;

/// Which block goes when room is needed; c_api.h section 7.
enum class eviction_policy : std::int32_t { lru = KVSTRATA_EVICT_LRU, frequency = KVSTRATA_EVICT_FREQUENCY };
/// Which blocks are stored.
enum class admission : std::int32_t { always = KVSTRATA_ADMIT_ALWAYS, second_sight = KVSTRATA_ADMIT_SECOND_SIGHT };

/// When a put that goes to memory and to the storage below is complete; c_api.h section 7.
enum class write_policy : std::int32_t { through = KVSTRATA_WRITE_THROUGH, back = KVSTRATA_WRITE_BACK };
/// When a record that was read from the storage is brought into memory.
enum class promotion : std::int32_t {
  on_hit = KVSTRATA_PROMOTE_ON_HIT,
  on_second_hit = KVSTRATA_PROMOTE_ON_SECOND_HIT,
  never = KVSTRATA_PROMOTE_NEVER
};

struct cache_options {
  std::string path;                  ///< a directory, made when missing (with those above it); empty: in memory
  std::uint64_t capacity_bytes = 0;  ///< hard bound of stored bytes, headers included; required unless read_only
  std::uint64_t snapshot_bytes = 0;  ///< of these, at most this much for snapshots; 0 = a quarter
  std::uint64_t staging_bytes = 0;   ///< bound of staging memory; 0 = 64 MiB
  std::uint64_t lease_bytes = 0;     ///< bound of what leases pin; 0 = half of capacity_bytes
  std::uint64_t lease_ms = 0;        ///< default lifetime of a lease; 0 = 60,000
  std::uint64_t io_timeout_ms = 0;   ///< a read that takes longer is a miss; 0 = 30,000
  std::uint32_t io_threads = 0;      ///< 0 = 2; at most 64
  std::uint32_t max_blocks = 0;      ///< bound of the index; 0 = 16 Mi
  bool read_only = false;            ///< open what is there, write nothing
  eviction_policy eviction = eviction_policy::lru;
  admission admit = admission::always;
  std::uint32_t high_percent = 0;        ///< of capacity_bytes: a put that would pass it evicts first; 0 = 100
  std::uint32_t low_percent = 0;         ///< ... down to this; 0 = high_percent
  std::uint64_t ghost_bytes = 0;         ///< memory for keys of blocks that are not there; 0 = 4 MiB where needed
  std::uint64_t keep_free_bytes = 0;     ///< of the storage's medium, if it tells; 0 = no floor
  std::uint64_t lane = 0;                ///< of the store at `path`; UINT64_MAX: the lowest free
  std::uint64_t memory_bytes = 0;        ///< a tier of memory over `path` or `storage`; 0 = none
  std::uint64_t memory_dirty_bytes = 0;  ///< the most payload that is in memory only; 0 = half of memory_bytes
  write_policy memory_write = write_policy::through;
  promotion memory_promotion = promotion::on_hit;
  const kvstrata_storage* storage = nullptr;      ///< a C storage; excludes path. C++ classes: storage_adapter
  const kvstrata_device* device = nullptr;        ///< for buffers in device memory
  const kvstrata_allocator* allocator = nullptr;  ///< host memory; must outlive every handle of the cache

  kvstrata_cache_options to_c() const noexcept {
    auto out = detail::sized<kvstrata_cache_options>();
    out.flags = read_only ? KVSTRATA_CACHE_READ_ONLY : 0;
    out.path = path.empty() ? nullptr : path.c_str();
    out.storage = storage;
    out.device = device;
    out.allocator = allocator;
    out.capacity_bytes = capacity_bytes;
    out.snapshot_bytes = snapshot_bytes;
    out.staging_bytes = staging_bytes;
    out.lease_bytes = lease_bytes;
    out.lease_ms = lease_ms;
    out.io_timeout_ms = io_timeout_ms;
    out.io_threads = io_threads;
    out.max_blocks = max_blocks;
    out.eviction_policy = static_cast<std::int32_t>(eviction);
    out.admission = static_cast<std::int32_t>(admit);
    out.high_percent = high_percent;
    out.low_percent = low_percent;
    out.ghost_bytes = ghost_bytes;
    out.keep_free_bytes = keep_free_bytes;
    out.lane = lane;
    out.memory_bytes = memory_bytes;
    out.memory_dirty_bytes = memory_dirty_bytes;
    out.memory_write = static_cast<std::int32_t>(memory_write);
    out.memory_promotion = static_cast<std::int32_t>(memory_promotion);
    return out;
  }
};

/// The named parts that make a namespace what it is beside its layout: weights, RoPE, adapter, tenant ... All bytes
/// are compared, never a hash. Owns its text.
class identity {
 public:
  /// Adds a field; names are [a-z0-9_.-], 1 to 64 characters, each at most once (open_namespace checks it).
  identity& set_bytes(std::string name, byte_view bytes) {
    fields_.push_back({std::move(name), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
    return *this;
  }
  identity& set(std::string name, std::string_view text) {
    fields_.push_back({std::move(name), std::string(text)});
    return *this;
  }
  /// Eight bytes, little-endian.
  identity& set_number(std::string name, std::uint64_t number) {
    char bytes[8];
    for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<char>((number >> (8 * i)) & 0xff);
    return set(std::move(name), std::string_view(bytes, sizeof bytes));
  }
  std::size_t size() const noexcept { return fields_.size(); }

  /// The array of the C API; points into this object.
  std::vector<kvstrata_identity_field> to_c() const {
    std::vector<kvstrata_identity_field> out;
    out.reserve(fields_.size());
    for (const field& one : fields_) {
      auto c = detail::sized<kvstrata_identity_field>();
      c.name = one.name.c_str();
      c.bytes = one.bytes.data();
      c.size = one.bytes.size();
      out.push_back(c);
    }
    return out;
  }

 private:
  struct field {
    std::string name;
    std::string bytes;
  };
  std::vector<field> fields_;
};

struct namespace_options {
  bool must_exist = false;                  ///< else it is made; the error names what differs from the nearest one
  std::uint32_t snapshot_policy = 0;        ///< KVSTRATA_SNAPSHOT_* bits; 0 = prompt end, output end, common prefix
  std::uint32_t snapshot_every_tokens = 0;  ///< for KVSTRATA_SNAPSHOT_EVERY_N
  std::uint32_t compress = 0;               ///< KVSTRATA_COMPRESS_* bits, of what writers of this handle store
  std::uint32_t pack = 0;                   ///< KVSTRATA_PACK_* bits, likewise
};

struct lookup_options {
  std::uint64_t held_tokens = 0;         ///< the caller already has the rows of this many leading tokens
  std::uint32_t allowed_modes = 0;       ///< mode_bit() of each; 0 = snapshot only
  std::uint32_t restart_multiple = 0;    ///< usable length and replay_from are multiples of it; 0 = 1
  std::uint64_t min_gain_tokens = 0;     ///< fewer tokens saved than this: a miss
  double prefill_tokens_per_second = 0;  ///< 0 = unknown: then no hit is refused for its cost
  double storage_bytes_per_second = 0;   ///< 0 = as measured by the cache
  std::uint64_t lease_ms = 0;            ///< 0 = the cache's default
  bool peek = false;                     ///< no lease, no recency, no statistics
  bool no_lease = false;                 ///< recency but no lease

  kvstrata_lookup_options to_c() const noexcept {
    auto out = detail::sized<kvstrata_lookup_options>();
    out.flags = (peek ? static_cast<std::uint32_t>(KVSTRATA_LOOKUP_PEEK) : 0u) |
                (no_lease ? static_cast<std::uint32_t>(KVSTRATA_LOOKUP_NO_LEASE) : 0u);
    out.held_tokens = held_tokens;
    out.allowed_modes = allowed_modes;
    out.restart_multiple = restart_multiple;
    out.min_gain_tokens = min_gain_tokens;
    out.prefill_tokens_per_second = prefill_tokens_per_second;
    out.storage_bytes_per_second = storage_bytes_per_second;
    out.lease_ms = lease_ms;
    return out;
  }
};

struct pin_traits {
  using pointer = kvstrata_pin*;
  static void destroy(pointer pin) noexcept { kvstrata_pin_destroy(pin); }
};

/// Rows of a match where they lie in memory; valid and unchanged until it is destroyed.
class pinned_rows : public handle<pin_traits> {
 public:
  using handle::handle;

  result<pin_info> info() const {
    auto out = detail::sized<pin_info>();
    error failure;
    if (auto done = detail::check(kvstrata_pin_get_info(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// Range `index` of info()'s range_count, in the order of the blocks.
  result<pin_range> range(std::uint64_t index) const {
    auto out = detail::sized<pin_range>();
    error failure;
    if (auto done = detail::check(kvstrata_pin_get_range(get(), index, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
};

struct match_traits {
  using pointer = kvstrata_match*;
  static void destroy(pointer match) noexcept { kvstrata_match_destroy(match); }
};

/// One lookup's result and the lease on what it promises; destroying it ends the lease. A miss is a match too, with
/// usable_tokens 0 and a reason.
class match : public handle<match_traits> {
 public:
  using handle::handle;

  result<match_info> info() const {
    auto out = detail::sized<match_info>();
    error failure;
    if (auto done = detail::check(kvstrata_match_get_info(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// Prolongs the lease to lease_ms from now (0 = default); errc::invalid_state when it has ended.
  result<void> renew(std::uint64_t lease_ms = 0) {
    error failure;
    return detail::check(kvstrata_match_renew(get(), lease_ms, failure.c_error()), failure);
  }
  /// Plans anew with usable_tokens <= max_usable_tokens.
  result<void> limit(std::uint64_t max_usable_tokens) {
    error failure;
    return detail::check(kvstrata_match_limit(get(), max_usable_tokens, failure.c_error()), failure);
  }
  /// Position of the first token that differs from the nearest stored continuation; UINT64_MAX = none. Reads storage.
  result<std::uint64_t> first_difference() {
    std::uint64_t out = 0;
    error failure;
    if (auto done = detail::check(kvstrata_match_first_difference(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// The leading blocks' rows of what a plan would read, as far as they are in memory, without a copy.
  result<pinned_rows> pin() const {
    kvstrata_pin* out = nullptr;
    error failure;
    if (auto done = detail::check(kvstrata_match_pin(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return pinned_rows(out);
  }
  /// A restore of what this match promises; the plan keeps the lease. Defined in plan.hpp.
  result<restore_plan> plan(const plan_options& options);
  result<restore_plan> plan();
};

/// Limits all matches of one prompt (one per rank) to the largest usable length that every one of them reaches.
inline result<std::uint64_t> agree(const std::vector<match*>& matches) {
  std::vector<kvstrata_match*> raw;
  raw.reserve(matches.size());
  for (match* one : matches) raw.push_back(one->get());
  std::uint64_t out = 0;
  error failure;
  if (auto done = detail::check(kvstrata_match_agree(raw.data(), raw.size(), &out, failure.c_error()), failure);
      !done) {
    return done.error();
  }
  return out;
}

struct namespace_traits {
  using pointer = kvstrata_namespace*;
  static void destroy(pointer name_space) noexcept { kvstrata_namespace_destroy(name_space); }
};

/// Identity and layout inside a cache: the wall between models, adapters and tenants.
class name_space : public handle<namespace_traits> {
 public:
  using handle::handle;

  /// Longest stored prefix. Pure memory, no I/O; the tokens are copied.
  result<match> lookup(token_view tokens, const lookup_options& options = {}) const {
    const kvstrata_tokens c_tokens = tokens.to_c();
    const kvstrata_lookup_options c = options.to_c();
    kvstrata_match* out = nullptr;
    error failure;
    if (auto done = detail::check(kvstrata_lookup(get(), &c_tokens, &c, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return match(out);
  }
  /// A writer for one growing sequence; with a match it continues that prompt. Defined in writer.hpp.
  result<writer> open_writer(const match* continues, const writer_options& options) const;
  result<writer> open_writer(const match* continues = nullptr) const;

  result<namespace_info> info() const {
    auto out = detail::sized<namespace_info>();
    error failure;
    if (auto done = detail::check(kvstrata_namespace_get_info(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// Forgets everything stored here; durable before it returns where the storage can.
  result<void> drop() {
    error failure;
    return detail::check(kvstrata_namespace_drop(get(), failure.c_error()), failure);
  }
};

struct cache_traits {
  using pointer = kvstrata_cache*;
  static void destroy(pointer cache) noexcept { kvstrata_cache_destroy(cache); }
};

/// One store. Destroying it closes it; close() tells what could not be stored.
class cache : public handle<cache_traits> {
 public:
  using handle::handle;

  /// Opens or makes a store and rebuilds its index; payload is not read.
  static result<cache> open(const cache_options& options) {
    const kvstrata_cache_options c = options.to_c();
    kvstrata_cache* out = nullptr;
    error failure;
    if (auto done = detail::check(kvstrata_cache_open(&c, &out, failure.c_error()), failure); !done)
      return done.error();
    return cache(out);
  }
  /// The same over a C++ storage. On success the cache has taken it over; on failure it stays in `storage`. Needs
  /// storage.hpp.
  template <class Impl>
  static result<cache> open(cache_options options, storage_adapter<Impl>& storage) {
    options.storage = storage.table();
    result<cache> out = open(options);
    if (out) storage.given_away();
    return out;
  }

  /// Drains accepted writes for at most timeout_ms (0 = 30,000), makes them durable and ends the threads.
  result<close_info> close(std::uint64_t timeout_ms = 0) {
    auto out = detail::sized<close_info>();
    error failure;
    if (auto done = detail::check(kvstrata_cache_close(get(), timeout_ms, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }

  /// Opens the namespace of this identity and layout, or makes it. The layout may be destroyed afterwards.
  result<name_space> open_namespace(const layout& what, const identity& who,
                                    const namespace_options& options = {}) const {
    const std::vector<kvstrata_identity_field> fields = who.to_c();
    auto c = detail::sized<kvstrata_namespace_options>();
    c.flags = options.must_exist ? KVSTRATA_NAMESPACE_MUST_EXIST : 0;
    c.layout = what.get();
    c.fields = fields.data();
    c.field_count = fields.size();
    c.snapshot_policy = options.snapshot_policy;
    c.snapshot_every_tokens = options.snapshot_every_tokens;
    c.compress = options.compress;
    c.pack = options.pack;
    kvstrata_namespace* out = nullptr;
    error failure;
    if (auto done = detail::check(kvstrata_namespace_open(get(), &c, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return name_space(out);
  }

  result<cache_stats> stats() const {
    auto out = detail::sized<cache_stats>();
    error failure;
    if (auto done = detail::check(kvstrata_cache_stats(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// The events from `from` on that are still held; `from` becomes the sequence to ask for next.
  result<std::vector<cache_event>> events(std::uint64_t& from, std::size_t at_most = 1024) const {
    std::vector<cache_event> out(at_most, detail::sized<cache_event>());
    std::uint64_t count = 0;
    std::uint64_t next = from;
    error failure;
    const kvstrata_status status = kvstrata_cache_events(get(), from, out.data(), out.size(), sizeof(cache_event),
                                                         &count, &next, failure.c_error());
    if (status != KVSTRATA_OK) return failure.with_code(status);
    out.resize(static_cast<std::size_t>(count));
    from = next;
    return out;
  }

  /// Reads every record and checks it. `progress(done, total)` returns false to end it with errc::cancelled.
  template <class Progress>
  result<verify_info> verify(Progress&& progress) {
    auto* callable = &progress;
    const kvstrata_progress_fn trampoline = [](void* user, std::uint64_t done,
                                               std::uint64_t total) noexcept -> std::int32_t {
      return detail::fenced(
          [&] { return (*static_cast<decltype(callable)>(user))(done, total) ? KVSTRATA_OK : KVSTRATA_E_CANCELLED; });
    };
    return verify_with(trampoline, callable);
  }
  result<verify_info> verify() { return verify_with(nullptr, nullptr); }

  /// Evicts, coldest leaf first, until at most target_bytes are held or only leased records are left. Gives the
  /// bytes held.
  result<std::uint64_t> trim(std::uint64_t target_bytes) {
    std::uint64_t out = 0;
    error failure;
    if (auto done = detail::check(kvstrata_cache_trim(get(), target_bytes, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// Makes everything stored so far durable; errc::unsupported where the storage cannot.
  result<void> sync() {
    error failure;
    return detail::check(kvstrata_cache_sync(get(), failure.c_error()), failure);
  }
  /// Removes the stored namespaces that no open handle uses. Gives the bytes freed.
  result<std::uint64_t> purge_foreign() {
    std::uint64_t out = 0;
    error failure;
    if (auto done = detail::check(kvstrata_cache_purge_foreign(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }

 private:
  result<verify_info> verify_with(kvstrata_progress_fn progress, void* user) {
    auto out = detail::sized<verify_info>();
    error failure;
    if (auto done = detail::check(kvstrata_cache_verify(get(), progress, user, &out, failure.c_error()), failure);
        !done) {
      return done.error();
    }
    return out;
  }
};

}  // namespace v1
}  // namespace kvstrata
