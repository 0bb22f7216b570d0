// SPDX-License-Identifier: Apache-2.0
// Arguments made of a fuzzer's bytes: numbers that are sane or hostile, structs in memory of exactly the size that they
// claim (so that a sanitizer sees the first byte read or written beyond), outputs that remember what they were.
//
// A caller can lie in ways that no library can see: more elements than its memory holds, a size that its memory does
// not have. Nothing here does: hostile counts are beyond what the header allows, so they must be refused before the
// memory is looked at.
//
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kvstrata/c_api.h"
#include "tests/fuzz/layout/target.h"

namespace kvstrata::fuzz {

// As Promise, and says first whose promise was broken.
inline void Promise(bool holds, const char* function, const char* what) {
  if (!holds) std::fprintf(stderr, "%s: %s\n", function, what);
  ::Promise(holds);
}

// The bytes, one after the other; zeros when they are used up.
class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool done() const { return at_ >= size_; }
  uint8_t Byte() { return done() ? 0 : data_[at_++]; }
  bool OneIn(uint32_t n) { return Byte() % n == n - 1; }
  uint64_t Below(uint64_t n) {
    uint64_t value = Byte();
    if (n > 256) value = value << 8 | Byte();
    return n == 0 ? 0 : value % n;
  }
  // What no sane caller says; each overflows something when it is added to or multiplied.
  uint64_t Hostile() {
    static constexpr std::array<uint64_t, 12> kValues = {0,
                                                         1,
                                                         UINT32_MAX,
                                                         uint64_t{1} << 32,
                                                         uint64_t{1} << 40,
                                                         INT64_MAX - 7,
                                                         INT64_MAX,
                                                         INT64_MAX + uint64_t{1},
                                                         UINT64_MAX / 3,
                                                         UINT64_MAX - 8,
                                                         UINT64_MAX - 1,
                                                         UINT64_MAX};
    return kValues[Below(kValues.size())];
  }
  // 0 .. most, seldom something hostile.
  uint64_t Number(uint64_t most) { return OneIn(24) ? Hostile() : Below(most + 1); }
  uint32_t Number32(uint32_t most) { return static_cast<uint32_t>(Number(most)); }
  // `count` elements are there: that many, fewer, or more than any array of this API may have.
  uint64_t Count(uint64_t count) {
    if (!OneIn(24)) return count;
    return OneIn(2) ? Below(count + 1) : uint64_t{1} << (33 + Below(31));
  }
  // Of an enumeration or a set of flags: known ones, seldom a stray number.
  int32_t Choice(std::initializer_list<int32_t> known) {
    if (OneIn(24)) return static_cast<int32_t>(Hostile());
    return known.begin()[Below(known.size())];
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

// A struct's size as the caller tells it: the right one mostly; cut anywhere, a newer library's, nonsense.
struct ToldSize {
  uint32_t told = 0;
  size_t memory = 0;     // bytes that are there
  bool garbage = false;  // beyond what this library knows

  ToldSize(ByteSource& in, size_t size) : told(static_cast<uint32_t>(size)), memory(size) {
    if (!in.OneIn(12)) return;
    const uint64_t kind = in.Below(4);
    if (kind <= 1) {
      told = static_cast<uint32_t>(in.Below(size + 1));
      memory = told < sizeof(told) ? sizeof(told) : told;
    } else if (kind == 2) {
      told += static_cast<uint32_t>(1 + in.Below(64));
      memory = told;
      garbage = in.OneIn(2);
    } else {
      static constexpr std::array<uint32_t, 4> kAbsurd = {4097, 1u << 20, INT32_MAX, UINT32_MAX};
      told = kAbsurd[in.Below(kAbsurd.size())];
      memory = sizeof(told);  // refused before another byte is read
    }
  }
};

// A struct to be read.
template <typename T>
class Input {
 public:
  Input(ByteSource& in, const T& value) {
    if (in.OneIn(32)) return;  // NULL
    const ToldSize size(in, sizeof(T));
    memory_.assign(size.memory, std::byte{0});
    std::memcpy(memory_.data(), &value, std::min(size.memory, sizeof(T)));
    std::memcpy(memory_.data(), &size.told, sizeof(size.told));
    if (size.garbage) memory_.back() = std::byte{1};
    memory_.shrink_to_fit();
  }
  const T* get() const { return memory_.empty() ? nullptr : reinterpret_cast<const T*>(memory_.data()); }

 private:
  std::vector<std::byte> memory_;
};

// An array of structs, all of one told size, with a stride.
template <typename T>
class InputArray {
 public:
  InputArray(ByteSource& in, const std::vector<T>& values) : count_(in.Count(values.size())) {
    if (in.OneIn(32)) return;  // NULL with a count
    const ToldSize size(in, sizeof(T));
    const size_t step = size.memory + (in.OneIn(8) ? in.Below(32) : 0);
    memory_.assign(values.size() * step, std::byte{0xcd});
    for (size_t i = 0; i < values.size(); ++i) {
      std::byte* at = memory_.data() + i * step;
      std::memset(at, 0, size.memory);
      std::memcpy(at, &values[i], std::min(size.memory, sizeof(T)));
      std::memcpy(at, &size.told, sizeof(size.told));
      if (size.garbage) at[size.memory - 1] = std::byte{1};
    }
    memory_.shrink_to_fit();
    stride_ = step == size.told && in.OneIn(2) ? 0 : step;
    if (in.OneIn(24)) stride_ = kBadStrides[in.Below(kBadStrides.size())];
    if (values.empty()) count_ = 0;
  }
  const T* get() const { return memory_.empty() ? nullptr : reinterpret_cast<const T*>(memory_.data()); }
  uint64_t count() const { return count_; }
  uint64_t stride() const { return stride_; }

 private:
  // Less than a struct_size, or more than any struct: refused before the second element is read.
  static constexpr std::array<uint64_t, 5> kBadStrides = {1, 3, 4097, INT64_MAX, UINT64_MAX};

  uint64_t count_ = 0;
  uint64_t stride_ = 0;
  std::vector<std::byte> memory_;
};

// Memory that a function may write when it succeeds, and must leave alone when it fails.
class Output {
 public:
  virtual ~Output() = default;
  virtual void Check(const char* function, bool succeeded) const = 0;

 protected:
  Output() = default;
  Output(const Output&) = default;
  Output& operator=(const Output&) = default;
};

// A struct to be filled.
template <typename T>
class OutputStruct : public Output {
 public:
  explicit OutputStruct(ByteSource& in) {
    if (in.OneIn(32)) return;  // NULL
    const ToldSize size(in, sizeof(T));
    told_ = size.told;
    memory_.assign(size.memory, std::byte{0xab});
    std::memcpy(memory_.data(), &size.told, sizeof(size.told));
    memory_.shrink_to_fit();
    before_ = memory_;
  }
  T* get() { return memory_.empty() ? nullptr : reinterpret_cast<T*>(memory_.data()); }
  bool untouched() const { return memory_ == before_; }
  void Check(const char* function, bool succeeded) const override {
    if (!succeeded) return Promise(untouched(), function, "failed and wrote into a struct");
    if (memory_.empty()) return;
    uint32_t kept = 0;
    std::memcpy(&kept, memory_.data(), sizeof(kept));
    Promise(kept == told_, function, "changed struct_size");
    for (size_t i = sizeof(T); i < memory_.size(); ++i) {
      Promise(memory_[i] == std::byte{0}, function, "left something in a member that it does not know");
    }
  }

 private:
  uint32_t told_ = 0;
  std::vector<std::byte> memory_, before_;
};

// A single value, or an array of them.
template <typename T>
class OutputArray : public Output {
 public:
  OutputArray(ByteSource& in, size_t count, T before) : memory_(in.OneIn(32) ? 0 : count, before), before_(memory_) {}
  T* get() { return memory_.empty() ? nullptr : memory_.data(); }
  const std::vector<T>& values() const { return memory_; }
  uint64_t size() const { return memory_.size(); }
  void Check(const char* function, bool succeeded) const override {
    if (!succeeded) Promise(memory_ == before_, function, "failed and wrote into an output");
  }

 private:
  std::vector<T> memory_, before_;
};

// The optional last argument of every function.
class ErrorOutput {
 public:
  explicit ErrorOutput(ByteSource& in) : output_(in) {}
  kvstrata_error* get() { return output_.get(); }
  void Check(const char* function, kvstrata_status status) {
    const kvstrata_error* error = output_.get();
    if (error == nullptr) return;
    uint32_t told = 0;
    std::memcpy(&told, error, sizeof(told));
    if (status == KVSTRATA_OK || told < sizeof(told) || told > 4096) {
      return Promise(output_.untouched(), function, "wrote into an error that it has no use for");
    }
    output_.Check(function, true);
    if (told < sizeof(kvstrata_error)) return;
    Promise(error->code == status, function, "the error has another code");
    Promise(std::memchr(error->field, 0, sizeof(error->field)) != nullptr, function, "error.field has no end");
    Promise(std::memchr(error->message, 0, sizeof(error->message)) != nullptr, function, "error.message has no end");
  }

 private:
  OutputStruct<kvstrata_error> output_;
};

}  // namespace kvstrata::fuzz
