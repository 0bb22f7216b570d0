// SPDX-License-Identifier: Apache-2.0
// Handles destroyed in any order; one writer of a directory at a time. What every function does after a close and in a
// forked child: every_function_test.cc.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.h"
#include "tests/unit/capi/fork_child.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

// One handle of each kind, with a finished plan.
struct Handles {
  CacheHandle cache;
  NamespaceHandle space;
  MatchHandle match;
  PlanHandle plan;
  WriterHandle writer;
};

Handles MakeHandles(World* world, const Sequence& stored) {
  Handles handles;
  world->Open();
  world->StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  handles.match = world->LookUp(Longer(stored), &info);
  REQUIRE(info.usable_tokens > 0);
  REQUIRE(kvstrata_plan_create(handles.match.get(), nullptr, Out(handles.plan), nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_writer_open(world->space.get(), handles.match.get(), nullptr, Out(handles.writer), nullptr) ==
          KVSTRATA_OK);
  handles.cache = std::move(world->cache);
  handles.space = std::move(world->space);
  return handles;
}

// What an opening comes to with `threads` threads at most, as a user who has none yet. 0: refused as it should be, and
// it opens once there may be more; 1: opened at once; else what was wrong.
int OpenWithThreads(kvstrata_cache_options options, rlim_t threads) {
  const rlim_t process = 1;
  const rlimit few{process + threads, 1000}, enough{1000, 1000};
  if (setrlimit(RLIMIT_NPROC, &few) != 0 || setuid(61'234) != 0) return 10;
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  Error error;
  CacheHandle cache;
  const kvstrata_status status = kvstrata_cache_open(&options, Out(cache), &error);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) {
    if (sigismember(&before, signal) != sigismember(&after, signal)) return 11;
  }
  if (status == KVSTRATA_OK) return 1;
  if (status != KVSTRATA_E_IO || error.native_code != EAGAIN || cache != nullptr) return 12;
  if (setrlimit(RLIMIT_NPROC, &enough) != 0) return 13;
  return kvstrata_cache_open(&options, Out(cache), nullptr) == KVSTRATA_OK ? 0 : 14;
}

}  // namespace

TEST_CASE("an opening that is refused a thread says so, and leaves nothing behind", "[capi]") {
  if (geteuid() != 0) {
    WARN("skipped: only root can become a user without threads");
    return;
  }
  TempDir directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  int refusals = 0;
  for (rlim_t threads = 0;; ++threads) {
    CAPTURE(threads);
    const std::string path = directory / std::to_string(threads);
    auto options = Sized<kvstrata_cache_options>();
    options.path = path.c_str();
    options.capacity_bytes = 64 << 20;
    options.memory_bytes = 8 << 20;
    const int found = RunInChild([&] { return OpenWithThreads(options, threads); });
    if (found == 1) break;
    REQUIRE(found == 0);
    ++refusals;
  }
  // The engine's own two, the tier's and the file backend's at least.
  CHECK(refusals >= 4);
}

TEST_CASE("handles are destroyed in any order", "[capi]") {
  int order[] = {0, 1, 2, 3, 4};
  do {
    World world;
    Handles handles = MakeHandles(&world, RandomSequence(1, 70));
    for (const int which : order) {
      if (which == 0) handles.cache.reset();
      if (which == 1) handles.space.reset();
      if (which == 2) handles.match.reset();
      if (which == 3) handles.plan.reset();
      if (which == 4) handles.writer.reset();
    }
    REQUIRE(c_store_count(world.store.get()).destroyed == 1);
  } while (std::next_permutation(std::begin(order), std::end(order)));
}

TEST_CASE("a directory has one writer at a time, and any number of readers", "[capi]") {
  TempDir directory;
  World world;
  world.options.storage = nullptr;
  world.options.path = directory.path().c_str();
  world.Open();
  const Sequence stored = RandomSequence(1, 70);
  world.StoreSequence(stored);
  Error error;
  CacheHandle second;
  CHECK(kvstrata_cache_open(&world.options, Out(second), &error) == KVSTRATA_E_LOCKED);
  const int child = RunInChild([&] {
    CacheHandle other;
    return kvstrata_cache_open(&world.options, Out(other), nullptr) == KVSTRATA_E_LOCKED ? 0 : 1;
  });
  CHECK(child == 0);
  world.Close();
  world.options.flags = KVSTRATA_CACHE_READ_ONLY;
  world.options.capacity_bytes = 0;
  world.Open();
  World reader;
  reader.options = world.options;
  reader.Open();
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = reader.LookUp(Longer(stored), &info);
  REQUIRE(info.usable_tokens == stored.size());
  CHECK(reader.Restore(match.get(), Longer(stored)) == stored.size());
  uint64_t held = 0;
  CHECK(kvstrata_cache_trim(world.cache.get(), 0, &held, nullptr) == KVSTRATA_E_READ_ONLY);
  CHECK(kvstrata_namespace_drop(world.space.get(), nullptr) == KVSTRATA_E_READ_ONLY);
}

TEST_CASE("a directory that cannot be made is an error with its errno", "[capi]") {
  World world;
  world.options.storage = nullptr;
  world.options.path = "/proc/kvstrata-cannot-be-here";
  Error error;
  CacheHandle cache;
  const kvstrata_status status = kvstrata_cache_open(&world.options, Out(cache), &error);
  CAPTURE(Describe(status, error));
  CHECK(status == KVSTRATA_E_IO);
  CHECK(error.native_code == ENOENT);
  CHECK(cache == nullptr);
}

TEST_CASE("missing folders above the path are made, but not for a reader", "[capi]") {
  TempDir directory;
  const std::string path = directory / "deep/down/store";
  World world;
  world.options.storage = nullptr;
  world.options.path = path.c_str();
  kvstrata_cache_options reader = world.options;
  reader.flags = KVSTRATA_CACHE_READ_ONLY;
  CacheHandle cache;
  CHECK(kvstrata_cache_open(&reader, Out(cache), nullptr) == KVSTRATA_E_NOT_FOUND);
  CHECK_FALSE(std::filesystem::exists(directory / "deep"));
  world.Open();
  CHECK(std::filesystem::is_directory(path));
}

TEST_CASE("a store that failed to open stays the caller's", "[capi]") {
  World world;
  kvstrata_cache_options options = world.options;
  options.capacity_bytes = 0;
  CacheHandle cache;
  CHECK(kvstrata_cache_open(&options, Out(cache), nullptr) != KVSTRATA_OK);
  CHECK(c_store_count(world.store.get()).destroyed == 0);
  kvstrata_storage broken = world.table;
  broken.submit = nullptr;
  options = world.options;
  options.storage = &broken;
  CHECK(kvstrata_cache_open(&options, Out(cache), nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(c_store_count(world.store.get()).destroyed == 0);
  world.OpenCache();
  world.Close();
  CHECK(c_store_count(world.store.get()).destroyed == 1);
}

TEST_CASE("what was accepted before a close is found after the next open", "[capi]") {
  World world;
  REQUIRE(c_store_start_thread(world.store.get()) == 0);
  world.Open();
  const Sequence stored = RandomSequence(9, 600);
  const auto engine = world.Engine();
  engine->sequence() = stored;
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  REQUIRE(engine->Advance(writer.get(), 0, stored.size()).empty());
  REQUIRE(kvstrata_writer_snapshot(writer.get(), nullptr) == KVSTRATA_OK);
  auto closed = Sized<kvstrata_close_info>();
  REQUIRE(kvstrata_cache_close(world.cache.get(), 0, &closed, nullptr) == KVSTRATA_OK);
  CHECK(closed.dropped_blocks == 0);
  writer.reset();
  world.Close();
  world.Open();
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &info);
  CHECK(info.matched_tokens == 576);  // 18 blocks of 32
  CHECK(info.usable_tokens == 600);
  CHECK(world.Restore(match.get(), Longer(stored)) == 600);
  CHECK(world.Stats().recovered_blocks == 18);
}

TEST_CASE("empty is legal everywhere", "[capi]") {
  World world;
  world.Open();
  Sequence empty;
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(empty, &info);
  CHECK(info.prompt_tokens == 0);
  CHECK(info.usable_tokens == 0);
  CHECK(info.mode == KVSTRATA_MODE_NONE);
  CHECK(info.reason != KVSTRATA_REASON_NONE);
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), match.get(), nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  CHECK(kvstrata_writer_advance(writer.get(), nullptr, 0, nullptr) == KVSTRATA_OK);
  CHECK(kvstrata_writer_advance(writer.get(), empty.All(), 0, nullptr) == KVSTRATA_OK);
  auto commit = Sized<kvstrata_commit_info>();
  CHECK(kvstrata_writer_commit(writer.get(), KVSTRATA_COMMIT_OUTPUT_END, 0, &commit, nullptr) == KVSTRATA_OK);
  CHECK(commit.sequence_tokens == 0);
  CHECK(commit.blocks_stored + commit.snapshots_stored + commit.blocks_dropped + commit.snapshots_dropped == 0);
  // A restore of a miss ends at once, with nothing.
  PlanHandle plan;
  REQUIRE(kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
  CHECK(kvstrata_plan_segment_count(plan.get()) == 0);
  REQUIRE(kvstrata_plan_start(plan.get(), nullptr, 0, 0, nullptr) == KVSTRATA_OK);
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_plan_wait(plan.get(), 10'000, &result, nullptr) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
  CHECK(result.usable_tokens == 0);
}

}  // namespace kvstrata::test
