// SPDX-License-Identifier: Apache-2.0
// Which requests go together, which wait for each other, and that nothing waits while nothing is being written.
#include "lib/storage/request_queue.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <variant>
#include <vector>

#include "lib/base/random.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::test::KeyOf;
using storage::RequestQueue;

namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// Payloads of any size: nobody looks at their bytes.
class Requests {
 public:
  storage::Request Put(uint64_t number, uint64_t bytes) {
    parts_.emplace_back(reinterpret_cast<const std::byte*>(this), bytes);
    return {storage::Put{KeyOf(number), {&parts_.back(), 1}, {}}, {}};
  }
  storage::Request Get(uint64_t number) { return {storage::Get{KeyOf(number), 0, {}}, {}}; }

 private:
  std::deque<base::ByteView> parts_;
};

storage::Key KeyIn(const storage::Request& request) {
  return std::visit([](const auto& operation) { return operation.key; }, request.operation);
}

// The numbers of a job's keys, of which the next is `*next`.
void CheckTakes(RequestQueue& queue, RequestQueue::Job* job, uint64_t first, uint64_t count) {
  REQUIRE(queue.ready());
  queue.Take(job);
  REQUIRE(job->count == count);
  for (uint64_t i = 0; i < count; ++i) CHECK(KeyIn(job->requests[i]) == KeyOf(first + i));
}

}  // namespace

TEST_CASE("a put waits for nothing while fewer than two writes are in hand, and then for one of them or for a MiB") {
  Requests requests;
  RequestQueue queue(64);
  CHECK_FALSE(queue.ready());
  RequestQueue::Job first, second, third, fourth;
  queue.Push(requests.Put(0, 200 * kKiB));
  CheckTakes(queue, &first, 0, 1);
  queue.Push(requests.Put(1, 200 * kKiB));
  CheckTakes(queue, &second, 1, 1);
  for (uint64_t number = 2; number < 7; ++number) {
    queue.Push(requests.Put(number, 200 * kKiB));
    CHECK_FALSE(queue.ready());
  }
  queue.Push(requests.Put(7, 200 * kKiB));  // 1,200 KiB
  CheckTakes(queue, &third, 2, 6);
  queue.Push(requests.Put(8, 1));
  CHECK_FALSE(queue.ready());
  queue.End(first);
  CHECK_FALSE(queue.ready());
  queue.End(third);
  CheckTakes(queue, &fourth, 8, 1);
  CHECK(queue.empty());
}

TEST_CASE("puts go together up to 4 MiB and up to 31 of them, a larger one alone, all in their order") {
  Requests requests;
  RequestQueue queue(256);
  RequestQueue::Job job;
  for (uint64_t number = 0; number < 5; ++number) queue.Push(requests.Put(number, kMiB));
  queue.Push(requests.Put(5, 16 * kMiB));
  for (uint64_t number = 6; number < 46; ++number) queue.Push(requests.Put(number, 1));
  const auto takes = [&](uint64_t first, uint64_t count) {
    CheckTakes(queue, &job, first, count);
    queue.End(job);
  };
  takes(0, 4);
  takes(4, 1);
  takes(5, 1);
  takes(6, 31);
  takes(37, 9);
  CHECK(queue.empty());
}

TEST_CASE("no more than so much is written at one time, however much waits") {
  Requests requests;
  RequestQueue queue(64);
  for (uint64_t number = 0; number < 16; ++number) queue.Push(requests.Put(number, kMiB));
  std::vector<RequestQueue::Job> jobs(3);
  CheckTakes(queue, &jobs[0], 0, 4);
  CheckTakes(queue, &jobs[1], 4, 4);
  CHECK_FALSE(queue.ready());
  queue.End(jobs[1]);
  CheckTakes(queue, &jobs[2], 8, 4);
  CHECK_FALSE(queue.ready());
}

TEST_CASE("gets go one by one and past puts that wait, and never before older puts that need not") {
  Requests requests;
  RequestQueue queue(64);
  RequestQueue::Job first, second, job;
  queue.Push(requests.Put(0, 16 * kMiB));
  queue.Push(requests.Put(1, 16 * kMiB));
  queue.Push(requests.Put(2, 16 * kMiB));
  queue.Push(requests.Get(3));
  queue.Push(requests.Get(4));
  CheckTakes(queue, &first, 0, 1);
  CheckTakes(queue, &second, 1, 1);
  CheckTakes(queue, &job, 3, 1);
  queue.End(job);
  queue.End(first);
  CheckTakes(queue, &job, 2, 1);
  queue.End(job);
  CheckTakes(queue, &job, 4, 1);
}

TEST_CASE("whatever comes and ends in whatever order, all of it is taken once and nothing is left waiting for ever") {
  base::SeededRandom random(5);
  Requests requests;
  RequestQueue queue(64);
  uint64_t pushed = 0, taken = 0;
  std::vector<std::unique_ptr<RequestQueue::Job>> in_hand;
  std::vector<bool> seen;
  while (taken < 3000) {
    const uint64_t choice = random.Below(4);
    if (choice < 2 && pushed < 3000 && pushed - taken < 64) {
      queue.Push(random.Below(4) == 0 ? requests.Get(pushed) : requests.Put(pushed, random.Below(700 * kKiB)));
      seen.push_back(false);
      ++pushed;
    } else if (choice == 2 && !in_hand.empty()) {
      std::swap(in_hand[random.Below(in_hand.size())], in_hand.back());
      queue.End(*in_hand.back());
      in_hand.pop_back();
    } else if (queue.ready()) {
      auto job = std::make_unique<RequestQueue::Job>();
      queue.Take(job.get());
      REQUIRE(job->count > 0);
      taken += job->count;
      for (const storage::Request& request : job->all()) {
        bool found = false;
        for (uint64_t number = 0; number < pushed && !found; ++number) {
          if (seen[number] || KeyIn(request) != KeyOf(number)) continue;
          found = seen[number] = true;
        }
        CHECK(found);
      }
      in_hand.push_back(std::move(job));
    } else {
      // What waits is let go by the end of something that is in hand.
      CHECK((queue.empty() || in_hand.size() >= 2));
    }
  }
  CHECK(queue.empty());
}
