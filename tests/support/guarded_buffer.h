// SPDX-License-Identifier: Apache-2.0
// Memory with a page that nobody may touch directly before and behind it: an access outside, by one byte, ends the
// program where it happens.
//
// The bytes lie against one of the two guards: kFront checks what reads or writes before the first byte, kBack what
// does after the last one (and leaves the address as unaligned as the size is). A test that takes the edge at random
// checks both over its runs.
//
// Thread rule: one thread.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvstrata::test {

enum class Edge { kFront, kBack };

class GuardedBuffer {
 public:
  // Called with the pages of each buffer that has some, when they are there and before they go: a test on a GPU lets it
  // reach them. Null: nobody is told.
  static inline void (*made)(void* memory, size_t bytes) = nullptr;
  static inline void (*gone)(void* memory) = nullptr;

  GuardedBuffer(size_t bytes, Edge edge) : bytes_(bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inner = (bytes + page - 1) / page * page;
    mapped_bytes_ = inner + 2 * page;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return;
    mapped_ = static_cast<uint8_t*>(mapped);
    inner_ = mapped_ + page;
    inner_bytes_ = inner;
    if (inner != 0 && mprotect(inner_, inner, PROT_READ | PROT_WRITE) != 0) return;
    if (inner != 0 && made != nullptr) made(inner_, inner);
    data_ = edge == Edge::kFront ? inner_ : inner_ + (inner - bytes);
  }
  GuardedBuffer(GuardedBuffer&& other) noexcept
      : bytes_(other.bytes_),
        mapped_(std::exchange(other.mapped_, nullptr)),
        mapped_bytes_(other.mapped_bytes_),
        inner_(other.inner_),
        inner_bytes_(other.inner_bytes_),
        data_(std::exchange(other.data_, nullptr)) {}
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer() {
    if (mapped_ != nullptr && inner_bytes_ != 0 && gone != nullptr) gone(inner_);
    if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  }

  // nullptr if the system gave no memory. With 0 bytes: an address that must not be touched.
  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }

  // From now on a write ends the program too.
  bool MakeReadOnly() { return inner_bytes_ == 0 || mprotect(inner_, inner_bytes_, PROT_READ) == 0; }

 private:
  size_t bytes_;
  uint8_t* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  uint8_t* inner_ = nullptr;
  size_t inner_bytes_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace kvstrata::test
