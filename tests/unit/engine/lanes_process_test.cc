// SPDX-License-Identifier: Apache-2.0
// Many processes on one root: writers on a lane each and readers, under random load, one of them killed and replaced.
// KVSTRATA_LANES_SECONDS makes it longer.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/engine/lane_store.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;

namespace {

constexpr uint64_t kCapacity = 1 << 20;
constexpr int kWriters = 4, kReaders = 2;

double Seconds() {
  const char* const given = getenv("KVSTRATA_LANES_SECONDS");
  return given == nullptr ? 2 : atof(given);
}

// Two dozen conversations that grow from four beginnings; together larger than a lane's budget.
Tokens Conversation(uint64_t number) {
  return Join(MakeTokens(48, number % 4), MakeTokens(40 + number % 3 * 16, 100 + number));
}

// This program again, as a process of its own.
pid_t Start(const std::string& root, int number, bool read_only) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child > 0) return child;
  setenv("KVSTRATA_LANE_ROOT", root.c_str(), 1);
  setenv("KVSTRATA_LANE_NUMBER", std::to_string(number).c_str(), 1);
  setenv("KVSTRATA_LANE_READ_ONLY", read_only ? "1" : "", 1);
  execl("/proc/self/exe", "child", "one process of many on a root", static_cast<char*>(nullptr));
  _exit(127);
}

int Wait(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("one process of many on a root", "[.]") {
  const char* const root = getenv("KVSTRATA_LANE_ROOT");
  if (root == nullptr) return;
  const int number = atoi(getenv("KVSTRATA_LANE_NUMBER"));
  const bool read_only = *getenv("KVSTRATA_LANE_READ_ONLY") != '\0';
  LaneStore store(root, static_cast<uint32_t>(number), read_only, kCapacity);
  base::SeededRandom random(4711 + static_cast<uint64_t>(number));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(Seconds());
  const auto last = end + std::chrono::minutes(2);  // on a machine so busy that nothing has been found yet
  uint64_t found = 0;
  const auto goes_on = [&] {
    const auto now = std::chrono::steady_clock::now();
    return now < end || (found == 0 && now < last);
  };
  while (goes_on()) {
    store.Wait();
    const Tokens tokens = Conversation(random.Below(24));
    found += store.RestoredTokens(tokens);  // every byte compared
    if (read_only) continue;
    const uint64_t what = random.Below(100);
    if (what < 60) {
      store.StorePrompt(tokens);
    } else if (what < 75) {
      REQUIRE(store.cache().Sync().ok());
    } else if (what == 99) {
      REQUIRE(store.cache().DropNamespace(store.space()).ok());
    } else if (what == 98) {
      REQUIRE(store.cache().Trim(kCapacity / 2).ok());
    }
    REQUIRE(store.stats().held_bytes <= kCapacity);
  }
  CHECK(found > 0);
}

TEST_CASE("four writers with a lane each and two readers on one root, one writer killed and replaced") {
  TempDir directory;
  std::vector<pid_t> children;
  for (int i = 0; i < kWriters; ++i) children.push_back(Start(directory.path(), i, false));
  std::this_thread::sleep_for(std::chrono::duration<double>(Seconds() / 4));
  for (int i = 0; i < kReaders; ++i) children.push_back(Start(directory.path(), 10 + i, true));
  std::this_thread::sleep_for(std::chrono::duration<double>(Seconds() / 4));
  REQUIRE(kill(children[1], SIGKILL) == 0);
  const int killed = Wait(children[1]);
  CHECK((killed == 1000 + SIGKILL || killed == 0));  // it may have been done already
  children[1] = Start(directory.path(), 1, false);
  for (const pid_t child : children) CHECK(Wait(child) == 0);
  // What they have left is right, whoever reads it.
  LaneStore reader(directory.path(), 0, /*read_only=*/true);
  const auto verified = reader.cache().Verify(nullptr);
  REQUIRE(verified.ok());
  CHECK(verified->corrupt == 0);
  for (uint64_t i = 0; i < 24; ++i) reader.RestoredTokens(Conversation(i));
}
