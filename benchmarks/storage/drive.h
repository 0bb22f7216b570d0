// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of storages share: memory as a drive likes it, keys, a folder for the run, requests with some in
// flight, and the bare drive: one file with direct I/O and huge pages, read through io_uring by one thread and written
// by several threads, which do nothing else.
//
// A thing that goes wrong ends the program with a line: no ratio may come out of work that was not done.
//
// Thread rule: one thread, but for what Window's completions do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/mutex.h"
#include "lib/storage/read_ring.h"
#include "lib/storage/storage.h"

namespace kvstrata::benchmarks {

inline constexpr size_t kInFlight = 8;
// Of puts of 256 KiB: a fourth of what an engine stages unless it is told otherwise.
inline constexpr size_t kPutsInFlight = 64;
// Of the bare drive that is written to, each time: so it takes its full rate.
inline constexpr uint64_t kBarePutBytes = 1u << 20;
inline constexpr uint64_t kUnitBytes = 4096;

[[noreturn]] void Fail(const char* what);

// On 2 MiB pages by advice, touched, never given back: a drive reads into them two to three times as fast as into
// 4 KiB pages on the machines measured.
std::byte* HugePages(size_t bytes);

core::storage::Key KeyOf(uint64_t number);

// A folder in the current directory, gone with this. A file system in memory would measure nothing.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "kvstrata-benchmark-XXXXXX";
};

// Some requests at a time, the next one when any has completed. Every one must deliver or store `bytes`.
class Window {
 public:
  Window(uint64_t bytes, size_t in_flight);

  // `make(number, slot, completion)` makes a request; no two with one slot are in flight at one time.
  template <typename Make>
  void Run(core::storage::Storage& store, uint64_t count, const Make& make) {
    for (uint64_t i = 0; i < count; ++i) {
      const size_t slot = Take();
      const core::storage::Request request = make(i, slot, core::storage::Completion{&Window::Done, &slots_[slot]});
      if (!store.Submit({&request, 1}).ok()) Fail("a request was refused");
    }
    Finish();
  }

 private:
  struct Slot {
    Window* window = nullptr;
    size_t number = 0;
  };
  static void Done(void* user, const core::storage::Result& result);
  size_t Take();
  void Finish();

  const uint64_t bytes_;
  std::vector<Slot> slots_;
  core::base::Mutex mutex_;
  core::base::CondVar changed_;
  std::vector<size_t> free_ ABSL_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

// A file of so many records of `record_bytes` (whole units), kInFlight transfers at one time. Reads go through
// io_uring, as fast as any way from one thread; by threads where there is none.
class RawFile {
 public:
  RawFile(const std::string& path, uint64_t records, uint64_t record_bytes);
  ~RawFile();
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  // All of them, once, flushed.
  void Write();
  // Each record copied before it is written, the next one from a unit further on: the most that a store could do whose
  // callers' memory no drive can write from. `source` has as many units more than a record as there are records.
  void WriteCopied(const std::byte* source);
  void Read();
  // So many of them, from `first` on, on one thread that hands each record to `use`, once the drive has its next reads:
  // the most that anybody reaches who has something to do with what was read. Only where there is a ring.
  void ReadFor(uint64_t first, uint64_t count,
               const std::function<void(uint64_t number, core::base::ByteView record)>& use);
  bool has_ring() const { return ring_ != nullptr; }
  uint64_t records() const { return records_; }
  uint64_t record_bytes() const { return record_bytes_; }

 private:
  template <typename Move>
  void RunThreads(const Move& move);
  void ReadRing();

  const uint64_t records_;
  const uint64_t record_bytes_;
  std::byte* const memory_;
  const std::unique_ptr<core::storage::ReadRing> ring_;
  int fd_ = -1;
};

}  // namespace kvstrata::benchmarks
