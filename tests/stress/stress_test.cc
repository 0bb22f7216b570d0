// SPDX-License-Identifier: Apache-2.0
// Thirty-two threads store, look up, restore, cancel, evict, verify and drop on one directory whose budget is half of
// what they work with (E18). Every namespace has the same prompts and rows of its own, a pure function of namespace and
// tokens, so that a byte of another namespace, prompt, stream or row is never taken for a right one (K18, C03, I21).
//
//   KVSTRATA_STRESS_SECONDS  how long; without it a few steps of each thread
//   KVSTRATA_SEED            the seed
//
// The threads count what went wrong, and the main thread judges: the test framework is for one thread.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kvstrata/kvstrata.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/support/temp_dir.h"

// Distributions build Abseil without ThreadSanitizer: it sees the memory that a status frees there, but not the
// counting of references that comes before.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libabsl_status.so\ncalled_from_lib:libabsl_cord.so\nrace:Status::Unref\n";
}

namespace {

using kvstrata::buffer;
using kvstrata::errc;
using kvstrata::name_space;
using kvstrata::test::Mix;
using kvstrata::test::Rng;

constexpr size_t kThreads = 32;
constexpr uint64_t kSteps = 16;
constexpr size_t kSpaces = 5;
constexpr size_t kPrompts = 16;
constexpr uint64_t kBlockTokens = 16;
constexpr uint64_t kMaxBlocks = 24;
// Two streams: a row a token, and a row for four.
struct Stream {
  uint32_t ratio;
  uint32_t row_bytes;
};
constexpr std::array<Stream, 2> kStreams = {{{1, 104}, {4, 1032}}};
// Of all namespaces together about 5 MB are stored in the end.
constexpr uint64_t kCapacity = 3 << 19;
constexpr unsigned char kPoison = 0xE7;
constexpr size_t kGuard = 64;

struct Prompt {
  std::vector<int32_t> tokens;
  // Of the first i tokens.
  std::vector<uint64_t> digests = {1};

  void Append(int32_t token) {
    tokens.push_back(token);
    digests.push_back(Mix(digests.back(), static_cast<uint32_t>(token)));
  }
};

// A tree: each prompt goes on where an earlier one has been for a while.
std::vector<Prompt> MakePrompts(uint64_t seed) {
  Rng rng(seed);
  std::vector<Prompt> prompts(kPrompts);
  for (size_t i = 0; i < kPrompts; ++i) {
    const Prompt& parent = prompts[i == 0 ? 0 : rng.Below(i)];
    const uint64_t shared = rng.Below(parent.tokens.size());
    for (uint64_t at = 0; at < shared; ++at) prompts[i].Append(parent.tokens[at]);
    const uint64_t size = shared + rng.Between(kBlockTokens, kMaxBlocks * kBlockTokens / 2);
    for (uint64_t at = shared; at < size; ++at) prompts[i].Append(static_cast<int32_t>(rng.Below(1u << 20)));
  }
  return prompts;
}

// What row `row` of a stream holds: eight bytes at a time, none like another's.
void FillRow(size_t space, const Prompt& prompt, size_t stream, uint64_t row, unsigned char* to) {
  uint64_t word = Mix(Mix(prompt.digests[(row + 1) * kStreams[stream].ratio], row), space * 16 + stream);
  for (uint32_t at = 0; at < kStreams[stream].row_bytes; at += sizeof word) {
    std::memcpy(to + at, &word, sizeof word);
    word = word * 0x9e3779b97f4a7c15ull + 1;
  }
}

using Rows = std::array<std::vector<unsigned char>, kStreams.size()>;

uint64_t RowsOf(size_t stream, uint64_t tokens) { return tokens / kStreams[stream].ratio; }

Rows RightRows(size_t space, const Prompt& prompt, uint64_t tokens) {
  Rows rows;
  for (size_t stream = 0; stream < kStreams.size(); ++stream) {
    rows[stream].resize(RowsOf(stream, tokens) * kStreams[stream].row_bytes);
    for (uint64_t row = 0; row < RowsOf(stream, tokens); ++row) {
      FillRow(space, prompt, stream, row, rows[stream].data() + row * kStreams[stream].row_bytes);
    }
  }
  return rows;
}

class Stress {
 public:
  explicit Stress(uint64_t seed) : seed_(seed), prompts_(MakePrompts(seed)) {}

  kvstrata::cache_options Options() const {
    kvstrata::cache_options options;
    options.path = folder_ / "store";
    options.capacity_bytes = kCapacity;
    // Scarce, so that waiting for it is met, too.
    options.staging_bytes = 512 << 10;
    options.io_threads = 4;
    return options;
  }

  std::string Open() {
    auto cache = kvstrata::cache::open(Options());
    if (!cache) return cache.error().c_str();
    cache_ = std::move(*cache);
    for (size_t space = 0; space < kSpaces; ++space) {
      auto opened = OpenSpace(space);
      if (!opened) return opened.error().c_str();
      spaces_[space] = std::move(*opened);
    }
    return {};
  }

  void Run(std::chrono::steady_clock::time_point end) {
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([this, thread, end] {
        Rng rng(Mix(seed_, thread));
        for (uint64_t step = 0; step < kSteps || std::chrono::steady_clock::now() < end; ++step) {
          Note(Step(rng));
          steps_ += 1;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Every prompt in every namespace, one after another.
  void RestoreAll() {
    Rng rng(seed_);
    for (size_t space = 0; space < kSpaces; ++space) {
      for (const Prompt& prompt : prompts_) Note(Restore(rng, space, prompt, false));
    }
  }

  void Close() {
    for (name_space& space : spaces_) space = {};
    auto closed = cache_.close();
    if (!closed) Note(closed.error().c_str());
    cache_ = {};
  }

  kvstrata::cache& cache() { return cache_; }
  std::string faults() {
    std::lock_guard lock(mutex_);
    return faults_;
  }
  uint64_t restored_tokens() const { return restored_tokens_; }
  uint64_t steps() const { return steps_; }

 private:
  kvstrata::result<name_space> OpenSpace(size_t space) {
    kvstrata::layout_builder builder;
    builder.block_tokens(kBlockTokens);
    for (uint32_t i = 0; i < kStreams.size(); ++i) {
      builder.rows(kvstrata::role::other, i, kStreams[i].ratio, kStreams[i].row_bytes);
    }
    auto layout = builder.build();
    if (!layout) return layout.error();
    kvstrata::identity who;
    who.set("model.weights", "stress").set("tenant", std::to_string(space));
    return cache_.open_namespace(*layout, who);
  }

  void Note(const std::string& fault) {
    if (fault.empty()) return;
    std::lock_guard lock(mutex_);
    if (faults_.size() < 2000) faults_ += fault + "\n";
  }

  // What a namespace says while it is being dropped, and a store that has no room left, are no faults.
  static std::string Fault(const char* call, const kvstrata::error& error) {
    if (error.code() == errc::invalid_state || error.code() == errc::no_space) return {};
    return std::string(call) + ": " + error.c_str();
  }

  std::string Step(Rng& rng) {
    const size_t space = rng.Below(kSpaces);
    const Prompt& prompt = prompts_[rng.Below(kPrompts)];
    const uint64_t what = rng.Below(100);
    if (what < 50) return Restore(rng, space, prompt, true);
    if (what < 88) return Store(rng, space, prompt);
    return Administrate(rng, space);
  }

  std::string Store(Rng& rng, size_t space, const Prompt& prompt) {
    const uint64_t size = prompt.tokens.size();
    kvstrata::match match;
    if (rng.Chance(60)) {
      auto found = spaces_[space].lookup(prompt.tokens);
      if (!found) return Fault("lookup", found.error());
      match = std::move(*found);
    }
    uint64_t at = 0;
    if (match) {
      const auto info = match.info();
      if (!info) return Fault("match info", info.error());
      at = info->usable_tokens;
    }
    kvstrata::writer_options options;
    options.wait_ms = rng.Chance(50) ? 1 : 2'000;
    options.keep = rng.Chance(20) ? kvstrata::priority::high : kvstrata::priority::normal;
    auto writer = spaces_[space].open_writer(match ? &match : nullptr, options);
    if (!writer) return Fault("open_writer", writer.error());
    Rows rows = RightRows(space, prompt, size);
    for (uint32_t stream = 0; stream < rows.size(); ++stream) {
      auto set = writer->set_source(buffer::linear(stream, rows[stream]));
      if (!set) return Fault("set_source", set.error());
    }
    while (at < size) {
      const uint64_t next = std::min(size, at + rng.Between(1, 5 * kBlockTokens));
      auto done = writer->advance({prompt.tokens.data() + at, next - at}, next);
      if (!done) return Fault("advance", done.error());
      at = next;
    }
    // What is in the library's hands now it has copied (C01).
    for (auto& stream : rows) std::fill(stream.begin(), stream.end(), kPoison);
    if (rng.Chance(30)) return {};
    auto done = writer->commit({.durable = rng.Chance(10)});
    return done ? std::string() : Fault("commit", done.error());
  }

  std::string Restore(Rng& rng, size_t space, const Prompt& prompt, bool roughly) {
    kvstrata::lookup_options lookup;
    lookup.no_lease = roughly && rng.Chance(20);
    auto match = spaces_[space].lookup(prompt.tokens, lookup);
    if (!match) return Fault("lookup", match.error());
    if (roughly && rng.Chance(20)) {
      auto limited = match->limit(rng.Below(prompt.tokens.size()));
      if (!limited) return Fault("limit", limited.error());
    }
    kvstrata::plan_options options;
    options.early_release = rng.Chance(50);
    auto plan = match->plan(options);
    if (!plan) return Fault("plan", plan.error());
    if (rng.Chance(50)) *match = {};
    Rows rows;
    std::vector<buffer> destinations;
    for (uint32_t stream = 0; stream < rows.size(); ++stream) {
      const size_t bytes = RowsOf(stream, prompt.tokens.size()) * kStreams[stream].row_bytes;
      rows[stream].assign(bytes + kGuard, kPoison);
      destinations.push_back(buffer::linear(stream, {rows[stream].data(), bytes}));
    }
    auto started = plan->start(destinations);
    if (!started) return Fault("start", started.error());
    if (roughly && rng.Chance(15)) {
      plan->cancel();
      // From here on the memory is ours again, and goes.
      return {};
    }
    const auto result = plan->wait();
    if (!result) return Fault("wait", result.error());
    restored_tokens_ += result->usable_tokens;
    return Compare(space, prompt, result->usable_tokens, rows);
  }

  static std::string Compare(size_t space, const Prompt& prompt, uint64_t usable, const Rows& rows) {
    const Rows right = RightRows(space, prompt, usable);
    for (size_t stream = 0; stream < rows.size(); ++stream) {
      if (!std::equal(right[stream].begin(), right[stream].end(), rows[stream].begin())) {
        return "wrong bytes in namespace " + std::to_string(space) + ", stream " + std::to_string(stream);
      }
      if (!std::all_of(rows[stream].end() - kGuard, rows[stream].end(), [](auto byte) { return byte == kPoison; })) {
        return "bytes behind a destination were written";
      }
    }
    return {};
  }

  std::string Administrate(Rng& rng, size_t space) {
    switch (rng.Below(8)) {
      case 0: {
        auto dropped = spaces_[space].drop();
        return dropped ? std::string() : Fault("drop", dropped.error());
      }
      case 1: {
        auto trimmed = cache_.trim(kCapacity / 2 + rng.Below(kCapacity / 2));
        return trimmed ? std::string() : Fault("trim", trimmed.error());
      }
      case 2: {
        auto verified = cache_.verify();
        if (!verified) return Fault("verify", verified.error());
        return verified->corrupt == 0 ? std::string() : "a record did not verify";
      }
      case 3: {
        auto again = OpenSpace(space);
        return again ? std::string() : Fault("open_namespace", again.error());
      }
      case 4: {
        uint64_t from = 0;
        auto events = cache_.events(from, 50);
        return events ? std::string() : Fault("events", events.error());
      }
      default: return CheckStats();
    }
  }

  std::string CheckStats() {
    const auto stats = cache_.stats();
    if (!stats) return Fault("stats", stats.error());
    if (stats->held_bytes > stats->capacity_bytes) return "more is held than the capacity";
    if (stats->bytes_in - stats->bytes_out != stats->held_bytes) return "bytes in and out do not add up";
    if (stats->lookups != stats->hits + stats->misses) return "hits and misses do not add up";
    if (stats->staging_bytes > stats->staging_capacity_bytes) return "more staging memory than its bound";
    return {};
  }

  const uint64_t seed_;
  const std::vector<Prompt> prompts_;
  kvstrata::test::TempDir folder_;
  kvstrata::cache cache_;
  std::array<name_space, kSpaces> spaces_;
  std::atomic<uint64_t> restored_tokens_{0};
  std::atomic<uint64_t> steps_{0};
  std::mutex mutex_;
  std::string faults_;
};

}  // namespace

TEST_CASE("thirty-two threads on one directory: right bytes, hard bounds, and all of it again after a reopening") {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(kvstrata::test::EnvironmentNumber("KVSTRATA_STRESS_SECONDS", 0));
  Stress stress(kvstrata::test::TestSeed("stress", 20261130));
  REQUIRE(stress.Open() == "");
  stress.Run(end);
  CHECK(stress.faults() == "");
  CHECK(stress.restored_tokens() > 0);
  auto before = stress.cache().stats();
  REQUIRE(before.ok());
  CHECK(before->reads_corrupt == 0);
  CHECK(before->reads_foreign == 0);
  CHECK(before->blocks_evicted > 0);
  CHECK(before->stuck_staging_bytes == 0);
  std::printf("stress: %llu steps, %llu blocks stored, %llu evicted, %llu restores\n",
              static_cast<unsigned long long>(stress.steps()), static_cast<unsigned long long>(before->blocks_stored),
              static_cast<unsigned long long>(before->blocks_evicted),
              static_cast<unsigned long long>(before->restores));
  stress.Close();
  REQUIRE(stress.Open() == "");
  const auto after = stress.cache().stats();
  REQUIRE(after.ok());
  CHECK(after->skipped_corrupt == 0);
  CHECK(after->skipped_orphans == 0);
  CHECK(after->held_bytes <= kCapacity);
  const auto verified = stress.cache().verify();
  REQUIRE(verified.ok());
  CHECK(verified->corrupt == 0);
  stress.RestoreAll();
  CHECK(stress.faults() == "");
  stress.Close();
}
