// SPDX-License-Identifier: Apache-2.0
// kvstrata/writer.hpp - writer: stores one growing sequence. C++17, header-only.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvstrata/buffer.hpp"
#include "kvstrata/c_api.h"
#include "kvstrata/cache.hpp"
#include "kvstrata/handle.hpp"
#include "kvstrata/plan.hpp"
#include "kvstrata/result.hpp"
#include "kvstrata/views.hpp"

namespace kvstrata {
inline namespace v1 {

using commit_info = kvstrata_commit_info;

/// How long a block stays when it is not used: a quarter of, as long as, or four times what others stay.
enum class priority : std::int32_t {
  normal = KVSTRATA_PRIORITY_NORMAL,
  low = KVSTRATA_PRIORITY_LOW,
  high = KVSTRATA_PRIORITY_HIGH
};

struct writer_options {
  bool no_admit = false;  ///< keeps the chain but stores nothing new
  bool no_snapshots = false;
  bool admit_inexact = false;          ///< stores also what follows from a bounded replay, which is not exact
  std::uint32_t restart_multiple = 0;  ///< snapshots only at multiples of it; 0 = 1
  /// With a match: tokens whose rows are already in the sources; 0 = its usable length.
  std::uint64_t start_tokens = 0;
  std::uint64_t wait_ms = 0;  ///< how long advance may wait for staging memory; 0 = 1,000
  void* stream = nullptr;     ///< the device's stream for device sources
  /// The restore that brought the rows, when it has ended: the writer starts at its result, be that 0.
  const restore_plan* restored = nullptr;
  priority keep = priority::normal;
  std::uint32_t ttl_seconds = 0;  ///< blocks are misses after it; 0 = for ever

  kvstrata_writer_options to_c() const noexcept {
    auto out = detail::sized<kvstrata_writer_options>();
    out.flags = (no_admit ? static_cast<std::uint32_t>(KVSTRATA_WRITER_NO_ADMIT) : 0u) |
                (no_snapshots ? static_cast<std::uint32_t>(KVSTRATA_WRITER_NO_SNAPSHOTS) : 0u) |
                (admit_inexact ? static_cast<std::uint32_t>(KVSTRATA_WRITER_ADMIT_INEXACT) : 0u);
    out.restart_multiple = restart_multiple;
    out.start_tokens = start_tokens;
    out.wait_ms = wait_ms;
    out.stream = stream;
    out.plan = restored != nullptr ? restored->get() : nullptr;
    out.priority = static_cast<std::int32_t>(keep);
    out.ttl_seconds = ttl_seconds;
    return out;
  }
};

struct commit_options {
  bool durable = false;          ///< sync before returning
  bool output_end = false;       ///< the output has ended here: store the newest state as the policy says
  std::uint64_t timeout_ms = 0;  ///< 0 = 30,000
};

struct writer_traits {
  using pointer = kvstrata_writer*;
  static void destroy(pointer writer) noexcept { kvstrata_writer_destroy(writer); }
};

/// Reads rows from the registered sources when blocks complete and stores them in the background. What cannot be
/// stored is dropped and counted, never an error of the sequence.
class writer : public handle<writer_traits> {
 public:
  using handle::handle;

  static result<writer> open(const name_space& in, const match* continues = nullptr,
                             const writer_options& options = {}) {
    const kvstrata_writer_options c = options.to_c();
    kvstrata_writer* out = nullptr;
    error failure;
    const kvstrata_status status =
        kvstrata_writer_open(in.get(), continues != nullptr ? continues->get() : nullptr, &c, &out, failure.c_error());
    if (status != KVSTRATA_OK) return failure.with_code(status);
    return writer(out);
  }

  /// Where a stream's rows are; again to replace it. The memory must stay readable during advance, snapshot and commit.
  result<void> set_source(const buffer& source) {
    const kvstrata_buffer c = source.to_c();
    error failure;
    return detail::check(kvstrata_writer_set_source(get(), &c, failure.c_error()), failure);
  }
  template <class Range>
  result<void> set_sources(const Range& sources) {
    for (const buffer& one : sources) {
      if (auto done = set_source(one); !done) return done;
    }
    return {};
  }

  /// After each step: `tokens` join the sequence, and the rows of its first computed_length tokens, with the state at
  /// computed_length, are in the sources.
  result<void> advance(token_view tokens, std::uint64_t computed_length) {
    const kvstrata_tokens c = tokens.to_c();
    error failure;
    return detail::check(
        kvstrata_writer_advance(get(), tokens.empty() ? nullptr : &c, computed_length, failure.c_error()), failure);
  }
  /// Takes a snapshot at the computed length now.
  result<void> snapshot() {
    error failure;
    return detail::check(kvstrata_writer_snapshot(get(), failure.c_error()), failure);
  }
  /// Where this prompt wants snapshots, ascending: cut prefill chunks there; advance then takes them.
  result<std::vector<std::uint64_t>> snapshot_positions(token_view prompt) {
    const kvstrata_tokens c = prompt.to_c();
    std::vector<std::uint64_t> out(16);
    error failure;
    for (;;) {
      std::uint64_t count = 0;
      const kvstrata_status status =
          kvstrata_writer_snapshot_positions(get(), &c, out.data(), out.size(), &count, failure.c_error());
      if (status != KVSTRATA_OK && status != KVSTRATA_E_BUFFER_TOO_SMALL) return failure.with_code(status);
      const bool fits = status == KVSTRATA_OK;
      out.resize(static_cast<std::size_t>(count));
      if (fits) return out;
    }
  }
  /// Takes back the tokens from `length` on (rejected draft tokens).
  result<void> truncate(std::uint64_t length) {
    error failure;
    return detail::check(kvstrata_writer_truncate(get(), length, failure.c_error()), failure);
  }
  /// An independent writer at the same point, with the same sources until they are set anew.
  result<writer> fork() const {
    kvstrata_writer* out = nullptr;
    error failure;
    if (auto done = detail::check(kvstrata_writer_fork(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return writer(out);
  }
  /// Waits until everything accepted so far is stored and visible.
  result<commit_info> commit(const commit_options& options = {}) {
    auto out = detail::sized<commit_info>();
    error failure;
    const std::uint32_t flags = (options.durable ? static_cast<std::uint32_t>(KVSTRATA_COMMIT_DURABLE) : 0u) |
                                (options.output_end ? static_cast<std::uint32_t>(KVSTRATA_COMMIT_OUTPUT_END) : 0u);
    const kvstrata_status status = kvstrata_writer_commit(get(), flags, options.timeout_ms, &out, failure.c_error());
    if (status != KVSTRATA_OK) return failure.with_code(status);
    return out;
  }
};

inline result<writer> name_space::open_writer(const match* continues, const writer_options& options) const {
  return writer::open(*this, continues, options);
}
inline result<writer> name_space::open_writer(const match* continues) const { return writer::open(*this, continues); }

}  // namespace v1
}  // namespace kvstrata
