// SPDX-License-Identifier: Apache-2.0
// Splits a range of tokens over threads. Each thread gets one contiguous part, and no result depends on the split.
//
// Thread rule: the function runs on several threads at once; ParallelRanges returns when all have ended, and rethrows
// the first exception.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace mini_engine {

// function(begin, end); the calling thread takes the first part. Fewer than 8 items are not worth a thread.
template <class Function>
void ParallelRanges(uint64_t count, uint32_t threads, const Function& function) {
  const uint64_t parts = std::clamp<uint64_t>(count / 8, 1, std::max(threads, 1u));
  if (parts == 1) {
    function(uint64_t{0}, count);
    return;
  }
  std::vector<std::exception_ptr> failures(parts);
  const auto run = [&](uint64_t part) {
    try {
      function(count * part / parts, count * (part + 1) / parts);
    } catch (...) {
      failures[part] = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (uint64_t part = 1; part < parts; ++part) workers.emplace_back(run, part);
  run(0);
  for (std::thread& worker : workers) worker.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace mini_engine
