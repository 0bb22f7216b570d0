// SPDX-License-Identifier: Apache-2.0
// kill -9 in the middle of puts: whatever the next opening lists is whole.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/segment/segment_storage.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::test::Completions;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;

namespace {

std::string PayloadOf(uint64_t number) {
  return std::string(number * 7919 % 20000, static_cast<char>('a' + number % 26));
}

// Puts, replaces and removes few keys in batches, for ever. Says through the pipe when there is something to find.
[[noreturn]] void PutUntilKilled(const std::string& path, int ready) {
  storage::SegmentOptions options;
  options.path = path;
  options.capacity_bytes = 1 << 20;
  options.journal_bytes = 20'000;  // a checkpoint now and then
  auto store = storage::SegmentStorage::Open(options);
  if (!store.ok()) _exit(1);
  for (uint64_t round = 0;; ++round) {
    constexpr size_t kBatch = 8;
    std::vector<std::string> texts(2 * kBatch);
    std::vector<base::ByteView> parts(kBatch);
    Completions completions(kBatch);
    std::vector<storage::Request> requests;
    for (size_t i = 0; i < kBatch; ++i) {
      const uint64_t number = round * kBatch + i;
      texts[2 * i] = PayloadOf(number);
      texts[2 * i + 1] = std::to_string(number);
      parts[i] = base::AsBytes(texts[2 * i]);
      requests.push_back(
          {storage::Put{KeyOf(number % 20), {&parts[i], 1}, base::AsBytes(texts[2 * i + 1])}, completions.Of(i)});
    }
    if (!(*store)->Submit(requests).ok()) _exit(2);
    completions.Wait();
    if (!(*store)->Remove(KeyOf(round % 20)).ok()) _exit(3);
    if (round % 5 == 0 && !(*store)->Sync().ok()) _exit(4);
    if (round == 0 && write(ready, "x", 1) != 1) _exit(5);
  }
}

void KillAfter(const std::string& path, std::chrono::microseconds time) {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) PutUntilKilled(path, ready[1]);
  close(ready[1]);
  char synced = 0;
  const ssize_t got = read(ready[0], &synced, 1);
  close(ready[0]);
  std::this_thread::sleep_for(time);
  kill(child, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(got == 1);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
}

}  // namespace

TEST_CASE("after kill -9 every listed record is whole and nothing is left over") {
  const uint64_t seed = 20250105;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  TempDir directory;
  const std::string path = directory / "store";
  size_t listed = 0;
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    KillAfter(path, std::chrono::microseconds(random.Below(8000)));
    storage::SegmentOptions options;
    options.path = path;
    options.capacity_bytes = 1 << 20;
    options.journal_bytes = 20'000;  // a checkpoint now and then
    auto store = storage::SegmentStorage::Open(options);
    REQUIRE(store.ok());
    CHECK((*store)->stats().dropped_at_open == 0);
    std::vector<storage::ListEntry> entries;
    uint64_t skipped = 0;
    REQUIRE(ListAll(**store, 7, &entries, &skipped).ok());
    CHECK(skipped == 0);
    listed += entries.size();
    uint64_t fixed = (*store)->UsedBytes();
    for (const storage::ListEntry& entry : entries) {
      const uint64_t number = std::stoull(std::string(base::AsText(entry.meta)));
      CHECK(entry.key == KeyOf(number % 20));
      CHECK(ReadNow(**store, entry.key).value() == PayloadOf(number));
      fixed -= entry.stored_bytes;
    }
    if (round % 10 == 9) {
      for (const storage::ListEntry& entry : entries) REQUIRE((*store)->Remove(entry.key).ok());
      CHECK((*store)->UsedBytes() == fixed);
    }
  }
  CHECK(listed > 0);
}
