// SPDX-License-Identifier: Apache-2.0
// Little-endian integers in bytes: fixed-place loads and stores, a reader that checks every length against what is
// left, and a writer that appends. Every format of the project is little-endian and is read and written through here.
//
// Invariants:
//   I1. ByteReader never reads outside its span; after the first failed read every later read fails too, so a caller
//       may read a whole structure and check ok() once.
//
// Thread rule: values; one thread at a time for each reader or writer.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace kvstrata::core::base {

using ByteView = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// Byte by byte, so that alignment and the machine's byte order do not matter; compilers make one move of it.
template <std::unsigned_integral T>
T LoadLittleEndian(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(std::to_integer<uint8_t>(from[i])) << (8 * i)));
  }
  return value;
}

template <std::unsigned_integral T>
void StoreLittleEndian(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

inline ByteView AsBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string_view AsText(ByteView bytes) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  bool Read(T* out) {
    ByteView bytes;
    if (!ReadBytes(sizeof(T), &bytes)) return false;
    *out = LoadLittleEndian<T>(bytes.data());
    return true;
  }

  // `*out` views the reader's own bytes. Nothing is written on failure.
  bool ReadBytes(uint64_t size, ByteView* out) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return false;
    }
    *out = rest_.first(static_cast<size_t>(size));
    rest_ = rest_.subspan(static_cast<size_t>(size));
    return true;
  }

  // A 32-bit length, then that many bytes.
  bool ReadFramed(ByteView* out) {
    uint32_t size = 0;
    return Read(&size) && ReadBytes(size, out);
  }

  bool Skip(uint64_t size) {
    ByteView ignored;
    return ReadBytes(size, &ignored);
  }

  bool ok() const { return ok_; }
  size_t remaining() const { return ok_ ? rest_.size() : 0; }
  // True when every read succeeded and nothing is left: what a parser of a whole structure checks last.
  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  ByteView rest_;
  bool ok_ = true;
};

// Appends to a vector that the caller owns and that outlives the writer.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>* out) : out_(out) {}

  template <std::unsigned_integral T>
  void Write(T value) {
    std::byte bytes[sizeof(T)];
    StoreLittleEndian(bytes, value);
    WriteBytes(bytes);
  }

  void WriteBytes(ByteView bytes) { out_->insert(out_->end(), bytes.begin(), bytes.end()); }

  // As ByteReader::ReadFramed. False, and nothing written, when the length does not fit in 32 bits.
  bool WriteFramed(ByteView bytes) {
    if (bytes.size() > UINT32_MAX) return false;
    Write(static_cast<uint32_t>(bytes.size()));
    WriteBytes(bytes);
    return true;
  }

 private:
  std::vector<std::byte>* out_;
};

}  // namespace kvstrata::core::base
