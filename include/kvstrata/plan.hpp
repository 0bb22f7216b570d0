// SPDX-License-Identifier: Apache-2.0
// kvstrata/plan.hpp - restore_plan: what is read where, and how it went. C++17, header-only.
//
// Thread rule: poll, wait, wait_layers and cancel from any thread; the rest by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvstrata/buffer.hpp"
#include "kvstrata/c_api.h"
#include "kvstrata/cache.hpp"
#include "kvstrata/handle.hpp"
#include "kvstrata/result.hpp"

namespace kvstrata {
inline namespace v1 {

enum class plan_state : std::int32_t {
  created = KVSTRATA_PLAN_CREATED,
  running = KVSTRATA_PLAN_RUNNING,
  complete = KVSTRATA_PLAN_COMPLETE,
  shortened = KVSTRATA_PLAN_SHORTENED,
  cancelled = KVSTRATA_PLAN_CANCELLED,
  failed = KVSTRATA_PLAN_FAILED
};

using plan_result = kvstrata_plan_result;
using plan_segment = kvstrata_plan_segment;

/// No limit of its own: the cache's io_timeout_ms bounds each read.
inline constexpr std::uint64_t no_timeout = UINT64_MAX;

struct plan_options {
  bool early_release = false;                ///< layers are given out as they arrive; a later failure is SHORTENED
  std::vector<std::uint32_t> streams;        ///< only these streams; empty = all
  std::uint64_t timeout_ms = 0;              ///< of the whole restore; 0 = none but io_timeout_ms
  void* stream = nullptr;                    ///< the device's stream for device destinations
  kvstrata_plan_signal_fn signal = nullptr;  ///< may only signal; never called inside start
  void* signal_user = nullptr;

  kvstrata_plan_options to_c() const noexcept {
    auto out = detail::sized<kvstrata_plan_options>();
    out.flags = early_release ? KVSTRATA_PLAN_EARLY_RELEASE : 0;
    out.streams = streams.empty() ? nullptr : streams.data();
    out.stream_count = streams.size();
    out.timeout_ms = timeout_ms;
    out.stream = stream;
    out.signal = signal;
    out.signal_user = signal_user;
    return out;
  }
};

struct plan_traits {
  using pointer = kvstrata_plan*;
  static void destroy(pointer plan) noexcept { kvstrata_plan_destroy(plan); }
};

/// One restore: start, then wait, then run the tokens from replay_from on. Destroying it cancels a running one; after
/// that its destinations are never touched again.
class restore_plan : public handle<plan_traits> {
 public:
  using handle::handle;

  static result<restore_plan> create(match& of, const plan_options& options = {}) {
    const kvstrata_plan_options c = options.to_c();
    kvstrata_plan* out = nullptr;
    error failure;
    if (auto done = detail::check(kvstrata_plan_create(of.get(), &c, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return restore_plan(out);
  }

  /// What will be read, one entry per stream that is not empty, in order of arrival.
  result<std::vector<plan_segment>> segments() const {
    std::vector<plan_segment> out(static_cast<std::size_t>(kvstrata_plan_segment_count(get())),
                                  detail::sized<plan_segment>());
    error failure;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const kvstrata_status status = kvstrata_plan_get_segment(get(), i, &out[i], failure.c_error());
      if (status != KVSTRATA_OK) return failure.with_code(status);
    }
    return out;
  }

  /// Checks every destination, then begins. From here until the plan has quiesced the destinations' memory is the
  /// plan's own; page ids and columns are copied. Range: anything that iterates over `buffer`.
  template <class Range>
  result<void> start(const Range& destinations) {
    std::vector<kvstrata_buffer> raw;
    for (const buffer& one : destinations) raw.push_back(one.to_c());
    error failure;
    return detail::check(kvstrata_plan_start(get(), raw.data(), raw.size(), sizeof(kvstrata_buffer), failure.c_error()),
                         failure);
  }
  /// Never blocks.
  result<plan_result> poll() const {
    auto out = detail::sized<plan_result>();
    error failure;
    if (auto done = detail::check(kvstrata_plan_poll(get(), &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// Until the leading `layers` layers are ready or the plan has ended; errc::timeout leaves it running.
  result<plan_result> wait_layers(std::uint64_t layers, std::uint64_t timeout_ms = no_timeout) const {
    auto out = detail::sized<plan_result>();
    error failure;
    if (auto done =
            detail::check(kvstrata_plan_wait_layers(get(), layers, timeout_ms, &out, failure.c_error()), failure);
        !done) {
      return done.error();
    }
    return out;
  }
  /// Until the end and quiescence.
  result<plan_result> wait(std::uint64_t timeout_ms = no_timeout) const {
    auto out = detail::sized<plan_result>();
    error failure;
    if (auto done = detail::check(kvstrata_plan_wait(get(), timeout_ms, &out, failure.c_error()), failure); !done) {
      return done.error();
    }
    return out;
  }
  /// When it has returned, the destinations are never touched again.
  void cancel() const noexcept { kvstrata_plan_cancel(get()); }
};

inline result<restore_plan> match::plan(const plan_options& options) { return restore_plan::create(*this, options); }
inline result<restore_plan> match::plan() { return restore_plan::create(*this); }

}  // namespace v1
}  // namespace kvstrata
