// SPDX-License-Identifier: Apache-2.0
// One piece of work for several stores: put so many values and be durable, then get each once in random order into the
// caller's memory, from a cold page cache. Values lie on units' boundaries in huge pages for everybody, and are checked
// at both ends by everybody when they are got.
//
// Thread rule: a Rival is used on one thread at a time and may use threads of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/bytes.h"

namespace kvstrata::benchmarks {

struct Work {
  uint64_t count = 0;
  size_t value_bytes = 0;
  // In which order values are got: each number below count once.
  std::vector<uint32_t> order;
  const std::byte* source = nullptr;

  Work(uint64_t values, size_t bytes);
  // Each value's bytes are its own: the same random bytes from another unit on.
  core::base::ByteView ValueOf(uint64_t number) const;
  // Ends the program where the value is not the right one at its ends.
  void Check(uint64_t number, const std::byte* got) const;
};

inline constexpr size_t kMostValueBytes = 1u << 20;
inline constexpr size_t kMostThreads = 24;
// Of our store and of the bare file.
inline constexpr size_t kGetsInFlight = 24;
inline constexpr size_t kKeyBytes = 16;
struct RivalKey {
  char bytes[kKeyBytes];
};
RivalKey RivalKeyOf(uint64_t number);

class Rival {
 public:
  virtual ~Rival() = default;
  virtual std::string name() const = 0;
  // Makes the store in a folder that is there, or opens the one that is in it.
  virtual void Open(const std::string& folder) = 0;
  virtual void Close() = 0;
  // Durable when it returns.
  virtual void PutAll(const Work& work) = 0;
  virtual void GetAll(const Work& work) = 0;
};
using Rivals = std::vector<std::unique_ptr<Rival>>;

// Calls `body(number, memory)` for each number below `count` on so many threads, each with memory of `bytes` in huge
// pages of its own.
void InThreads(uint64_t count, size_t threads, size_t bytes,
               const std::function<void(uint64_t number, std::byte* memory)>& body);

std::unique_ptr<Rival> MakeOurs();
// What any store could reach at most. Null where `folder` has no direct I/O, or the kernel no io_uring.
std::unique_ptr<Rival> MakeBare(const std::string& folder);
// Each family in several settings; the best of them is compared with. Empty where the library was not there when this
// was built.
Rivals MakeRocksDb();
Rivals MakeLmdb();
// One file for each value. With direct I/O: by eight threads.
Rivals MakeBufferedFiles();
Rivals MakeDirectFiles();

}  // namespace kvstrata::benchmarks
