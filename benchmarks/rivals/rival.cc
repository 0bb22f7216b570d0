// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/rivals/rival.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "benchmarks/storage/drive.h"
#include "lib/base/random.h"

namespace kvstrata::benchmarks {
namespace {

constexpr size_t kSourceUnits = 1024;
// What is compared at either end of a value.
constexpr size_t kCheckedBytes = 64;

}  // namespace

Work::Work(uint64_t values, size_t bytes) : count(values), value_bytes(bytes), order(values) {
  const size_t source_bytes = kSourceUnits * kUnitBytes + bytes;
  std::byte* const memory = HugePages(source_bytes);
  core::base::SeededRandom random(21);
  static_cast<void>(random.Fill({memory, source_bytes}));
  source = memory;
  for (uint64_t i = 0; i < count; ++i) order[i] = static_cast<uint32_t>(i);
  for (uint64_t i = count; i > 1; --i) {
    uint64_t word = 0;
    static_cast<void>(random.Fill({reinterpret_cast<std::byte*>(&word), sizeof word}));
    std::swap(order[i - 1], order[word % i]);
  }
}

core::base::ByteView Work::ValueOf(uint64_t number) const {
  // An odd factor: no two of 1,024 values in a row are alike.
  return {source + number * 617 % kSourceUnits * kUnitBytes, value_bytes};
}

void Work::Check(uint64_t number, const std::byte* got) const {
  const core::base::ByteView right = ValueOf(number);
  const size_t last = value_bytes - kCheckedBytes;
  if (std::memcmp(got, right.data(), kCheckedBytes) != 0 ||
      std::memcmp(got + last, right.data() + last, kCheckedBytes) != 0) {
    Fail("a get delivered other bytes");
  }
}

RivalKey RivalKeyOf(uint64_t number) {
  RivalKey key;
  const core::storage::Key wide = KeyOf(number);
  std::memcpy(key.bytes, wide.bytes.data(), kKeyBytes);
  return key;
}

void InThreads(uint64_t count, size_t threads, size_t bytes,
               const std::function<void(uint64_t number, std::byte* memory)>& body) {
  // Kept from run to run: to touch it anew would be charged to the rival.
  static std::byte* const memory = HugePages(kMostThreads * kMostValueBytes);
  if (threads > kMostThreads || bytes > kMostValueBytes) Fail("more memory is needed");
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> running;
  for (size_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (uint64_t i = next++; i < count; i = next++) body(i, memory + thread * kMostValueBytes);
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace kvstrata::benchmarks
