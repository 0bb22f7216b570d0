// SPDX-License-Identifier: Apache-2.0
// One cache, many threads: what is restored is right at any moment, and the accounts fit in the end. Runs under
// ThreadSanitizer too. The fixture's own checks use the test framework, which is for one thread; here threads count
// what went wrong, and the main thread judges.
#include <algorithm>
#include <atomic>
#include <thread>

#include "lib/base/status.h"
#include "lib/engine/io.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace layout = kvstrata::core::layout;
namespace plan = kvstrata::core::plan;
using base::Code;

// Distributions build Abseil without ThreadSanitizer: it sees the memory that a status frees there, but not the
// counting of references that comes before.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libabsl_status.so\ncalled_from_lib:libabsl_cord.so\nrace:Status::Unref\n";
}

namespace {

// Rows of RowsLayout for both streams, as an engine would keep them.
struct Rows {
  explicit Rows(const layout::Layout& layout, const Tokens& tokens) {
    for (uint32_t stream = 0; stream < 2; ++stream) {
      for (uint64_t row = 0; row < tokens.size(); ++row) {
        const auto bytes = ExpectedRow(layout, stream, tokens, row, 0);
        memory[stream].insert(memory[stream].end(), bytes.begin(), bytes.end());
      }
    }
  }
  std::vector<std::byte> memory[2];
};

// One store's workers; each method is one step of a thread's life and returns false when something was wrong.
class Work {
 public:
  explicit Work(Store& store) : store_(store), cache_(store.cache_handle()), space_(store.space()) {
    for (uint64_t i = 0; i < 12; ++i) {
      const Tokens base_tokens = i < 4 ? Tokens{} : Prefix(prompts_[i % 4], 8 + i);
      prompts_.push_back(Join(base_tokens, MakeTokens(20 + i, 900 + i)));
      rows_.emplace_back(store.layout(), prompts_.back());
    }
  }

  bool Write(Rng& rng) {
    const size_t i = rng.Below(prompts_.size());
    const Tokens& tokens = prompts_[i];
    engine::WriterOptions options;
    options.wait_ms = 5;
    auto writer = Writer::Open(cache_, space_, store_.policy, nullptr, nullptr, options);
    if (!writer.ok()) return Closed(writer.status());
    for (uint32_t stream = 0; stream < 2; ++stream) {
      const absl::Status status = (*writer)->SetSource(LinearBuffer(stream, rows_[i].memory[stream]));
      if (!status.ok()) return Closed(status);
    }
    for (uint64_t at = 0; at < tokens.size();) {
      const uint64_t next = std::min<uint64_t>(tokens.size(), at + rng.Between(1, 9));
      const absl::Status status = (*writer)->Advance(std::span(tokens).subspan(at, next - at), {}, next);
      if (!status.ok()) return Closed(status);
      at = next;
    }
    if (rng.Chance(50)) return true;
    const absl::Status status = (*writer)->Commit(false, true, 60'000, nullptr);
    return status.ok() || Closed(status);
  }

  bool Read(Rng& rng) {
    const size_t i = rng.Below(prompts_.size());
    engine::Prompt prompt;
    if (!prompt.Append(prompts_[i], {}).ok()) return false;
    LookupOptions lookup;
    lookup.no_lease = rng.Chance(30);
    auto match = Match::Lookup(cache_, space_, std::move(prompt), lookup);
    if (!match.ok()) return Closed(match.status());
    if (rng.Chance(20)) (*match)->Limit(rng.Below(30)).IgnoreError();
    if (rng.Chance(20)) (*match)->Renew(rng.Below(50)).IgnoreError();
    if (rng.Chance(10)) (*match)->FirstDifference().status().IgnoreError();
    RestoreOptions options;
    options.early_release = rng.Chance(50);
    auto restore = RestorePlan::Create(**match, options);
    if (!restore.ok()) return Closed(restore.status());
    match->reset();
    std::vector<std::byte> memory[2];
    for (std::vector<std::byte>& m : memory) m.assign(prompts_[i].size() * 6, std::byte{0xEE});
    const absl::Status start = (*restore)->Start({LinearBuffer(0, memory[0]), LinearBuffer(1, memory[1])});
    if (!start.ok()) return Closed(start);
    if (rng.Chance(10)) {
      (*restore)->Cancel();
      return (*restore)->Poll().quiesced;  // the memory goes now
    }
    RestoreResult result;
    if (!(*restore)->Wait(60'000, &result).ok()) return false;
    if (result.state == RestoreState::kCancelled) return true;
    const size_t usable = result.plan.usable_tokens * 6;
    for (uint32_t stream = 0; stream < 2; ++stream) {
      const auto& right = rows_[i].memory[stream];
      if (!std::equal(memory[stream].begin(), memory[stream].begin() + static_cast<std::ptrdiff_t>(usable),
                      right.begin())) {
        return false;
      }
    }
    restored_ += result.plan.usable_tokens;
    return true;
  }

  bool Administrate(Rng& rng) {
    switch (rng.Below(8)) {
      case 0: return Closed(cache_->DropNamespace(space_));
      case 1: return Closed(cache_->Trim(rng.Below(4000)).status());
      case 2: return Closed(cache_->Verify(nullptr).status());
      case 3: return Closed(cache_->PurgeForeign().status());
      case 4: {
        bool existed = false;
        const auto other = cache_->OpenNamespace(TestIdentity(OpaqueLayout()), OpaqueLayout(), false, &existed);
        if (other.ok()) cache_->CloseNamespace(other->get());
        return Closed(other.status());
      }
      default: {
        const Stats stats = cache_->stats();
        uint64_t next = 0;
        cache_->Events(rng.Below(100), 10, &next);
        cache_->DescribeNamespace(*space_);
        return stats.held_bytes <= stats.capacity_bytes && stats.bytes_in - stats.bytes_out == stats.held_bytes;
      }
    }
  }

  uint64_t restored() const { return restored_; }

 private:
  // OK, or what a closing cache may say.
  static bool Closed(const absl::Status& status) {
    const Code code = base::CodeOf(status);
    return status.ok() || code == Code::kInvalidState || code == Code::kCancelled || code == Code::kNoSpace;
  }

  Store& store_;
  const std::shared_ptr<Cache> cache_;
  const std::shared_ptr<NameSpace> space_;
  std::vector<Tokens> prompts_;
  std::vector<Rows> rows_;
  std::atomic<uint64_t> restored_ = 0;
};

// Steps of `threads` threads, `steps` each; returns how many went wrong.
uint64_t Run(Work& work, uint64_t seed, uint64_t steps, bool administrate) {
  std::atomic<uint64_t> wrong = 0;
  std::vector<std::thread> threads;
  const auto add = [&](uint64_t number, auto step) {
    threads.emplace_back([&, number, step] {
      Rng rng(Mix(seed, number));
      for (uint64_t i = 0; i < steps; ++i) wrong += (work.*step)(rng) ? 0 : 1;
    });
  };
  add(0, &Work::Write);
  add(1, &Work::Write);
  add(2, &Work::Read);
  add(3, &Work::Read);
  if (administrate) add(4, &Work::Administrate);
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

}  // namespace

TEST_CASE("writers, readers and administration at once: right bytes, right accounts") {
  const uint64_t seed = TestSeed("threads", 20260401);
  uint64_t restored = 0;
  for (const bool administrate : {false, true}) {
    for (const bool at_random : {false, true}) {
      CAPTURE(administrate, at_random);
      Store store(RowsLayout(), 40'000);
      store.options.threads = 2;
      store.options.staging_bytes = 2000;  // scarce
      store.Open();
      store.faults().CompleteAtRandom(at_random);
      {
        Work work(store);
        CHECK(Run(work, seed, 400, administrate) == 0);
        restored += work.restored();
      }
      CHECK(store.cache().Trim(store.stats().held_bytes).ok());
      Await([&] { return store.stats().staging_bytes == 0; });
      store.CheckAccounts();
      CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
      const Stats stats = store.stats();
      CHECK(stats.reads_corrupt == 0);
      CHECK(stats.restores == stats.restores_complete + stats.restores_shortened + stats.restores_cancelled);
      store.Reopen();
      store.CheckAccounts();
      CHECK(store.stats().skipped_orphans == 0);
    }
  }
  CHECK(restored > 0);
}

TEST_CASE("a tight budget under many hands never overflows and never gives wrong bytes") {
  const uint64_t seed = TestSeed("threads_tight", 20260402);
  Store store(RowsLayout(), 9'000);
  store.options.threads = 2;
  store.Open();
  store.faults().CompleteAtRandom(true);
  {
    Work work(store);
    CHECK(Run(work, seed, 400, false) == 0);
  }
  Await([&] { return store.stats().staging_bytes == 0; });
  store.CheckAccounts();
  CHECK(store.stats().blocks_evicted > 0);
}

TEST_CASE("a close in the middle of everything ends everything") {
  const uint64_t seed = TestSeed("threads_close", 20260403);
  for (uint64_t round = 0; round < 4; ++round) {
    Store store(RowsLayout(), 40'000);
    store.options.threads = 2;
    store.Open();
    store.faults().CompleteAtRandom(round % 2 == 0);
    {
      Work work(store);
      std::thread closer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(3 + 2 * round));
        store.cache().Close(std::chrono::seconds(60), nullptr).IgnoreError();
      });
      CHECK(Run(work, Mix(seed, round), 100, true) == 0);
      closer.join();
    }
    store.Close();
    store.Open();
    CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
    store.CheckAccounts();
  }
}

TEST_CASE("waiters on every thread see one restore end") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(41, 1);
  store.StorePrompt(tokens);
  for (int round = 0; round < 20; ++round) {
    const auto match = store.Lookup(tokens);
    const auto restore = RestorePlan::Create(*match, {}).value();
    std::vector<std::byte> memory[2] = {std::vector<std::byte>(41 * 6), std::vector<std::byte>(41 * 6)};
    store.faults().CompleteAtRandom(true);
    REQUIRE(restore->Start({LinearBuffer(0, memory[0]), LinearBuffer(1, memory[1])}).ok());
    std::atomic<int> ended = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        RestoreResult result;
        if (i == 2 && round % 2 == 0) restore->Cancel();
        if (restore->Wait(60'000, &result).ok() && result.quiesced && result.state != RestoreState::kRunning) ++ended;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(ended == 3);
  }
}
