// SPDX-License-Identifier: Apache-2.0
// What the benchmarks on a GPU share: memory on it, times by its own clock, and passes over memory that nothing can be
// faster than. Without a GPU a benchmark prints one line and ends well.
//
// A thing that goes wrong ends the program with a line: no ratio may come out of work that was not done.
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvstrata/cuda.h"

namespace kvstrata::benchmarks {

[[noreturn]] void FailGpu(const std::string& what);

// Makes the first device current; prints "skipped: no device: ..." and ends the program with 0 where there is none.
void NeedDevice();

struct DeviceFree {
  void operator()(void* memory) const;
};
using DeviceMemory = std::unique_ptr<void, DeviceFree>;

DeviceMemory Allocate(uint64_t bytes);
void ToDevice(void* to, const void* from, uint64_t bytes);
void ToHost(void* to, const void* from, uint64_t bytes);
template <typename T>
DeviceMemory Upload(const std::vector<T>& values) {
  DeviceMemory memory = Allocate(values.size() * sizeof(T));
  ToDevice(memory.get(), values.data(), values.size() * sizeof(T));
  return memory;
}
template <typename T>
std::vector<T> Download(const void* memory, uint64_t count) {
  std::vector<T> values(count);
  ToHost(values.data(), memory, count * sizeof(T));
  return values;
}
void Wait();

// An argument struct of the kernels.
template <typename T>
T Args() {
  T args{};
  args.struct_size = sizeof args;
  return args;
}

// A status of a kernel's or of libkvstrata_cuda's function.
void Ok(int32_t status, const char* what);

// Seconds that the device needs for one of what `queue` queues on the default stream, out of `repeats` one after the
// other.
double DeviceSeconds(const std::function<void()>& queue, int repeats = 5);

// Prints the ratio of both, times taken in alternation, each once before. `share`: seconds of `reference` over those of
// `measured`, else the other way round. `scale`: the reference's seconds count so often.
void PrintDevicePairs(const char* name, const char* goal, const std::function<void()>& measured,
                      const std::function<void()>& reference, bool share, double scale = 1);

// From here to there on the device: reads and writes `bytes` each.
void CopyPass(void* to, const void* from, uint64_t bytes);
// Reads `bytes`, a multiple of 16, and keeps a sum of them.
void ReadPass(const void* from, uint64_t bytes, uint32_t* sum);

}  // namespace kvstrata::benchmarks
