// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/vector_file.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace kvstrata::golden {
namespace {

constexpr std::string_view kMagic = "KVGOLD01";
enum Kind : uint8_t { kFloat32 = 1, kInt32 = 2, kGenerated = 3 };

uint64_t Fnv1a(std::string_view text) {
  uint64_t value = 0xCBF29CE484222325u;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return value;
}

// Element `index` of a generated tensor, in [-1, 1): the signed top 16 bits of SplitMix64's output.
float Unit(uint64_t start, uint64_t index) {
  uint64_t z = start + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<float>(static_cast<int32_t>(z >> 48) - 32768) / 32768.0f;
}

// Takes little-endian numbers off the front of the bytes; once something was missing, everything is.
class Cursor {
 public:
  explicit Cursor(std::span<const unsigned char> bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  bool empty() const { return left_.empty(); }

  std::span<const unsigned char> Take(uint64_t count) {
    if (!ok_ || count > left_.size()) {
      ok_ = false;
      return {};
    }
    const auto taken = left_.first(static_cast<size_t>(count));
    left_ = left_.subspan(static_cast<size_t>(count));
    return taken;
  }

  uint64_t Number(uint64_t bytes) {
    uint64_t value = 0;
    int shift = 0;
    for (const unsigned char byte : Take(bytes)) {
      value |= static_cast<uint64_t>(byte) << shift;
      shift += 8;
    }
    return value;
  }

  std::string Text(uint64_t bytes) {
    const auto taken = Take(bytes);
    return std::string(taken.begin(), taken.end());
  }

 private:
  std::span<const unsigned char> left_;
  bool ok_ = true;
};

// The product of the dimensions, or nothing if it is beyond the bound.
std::optional<uint64_t> Elements(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t dimension : shape) {
    if (dimension > VectorFile::kElementsMax) return std::nullopt;
    elements *= dimension;
    if (elements > VectorFile::kElementsMax) return std::nullopt;
  }
  return elements;
}

void Generate(std::string_view name, uint64_t seed, uint64_t elements, Record& record) {
  const float scale = record.floats[0];
  const float offset = record.floats[1];
  const uint64_t start = Fnv1a(name) + seed;
  record.floats.resize(elements);
  for (uint64_t i = 0; i < elements; ++i) record.floats[i] = offset + scale * Unit(start, i);
}

// One record after its name; the reason if it is malformed.
std::string ReadRecord(Cursor& in, std::string_view name, uint64_t seed, Record& record) {
  const uint64_t kind = in.Number(1);
  const uint64_t rank = in.Number(1);
  for (uint64_t i = 0; i < rank; ++i) record.shape.push_back(in.Number(8));
  record.stride = in.Number(8);
  const uint64_t count = in.Number(8);
  if (!in.ok()) return "cut off in a record's head";
  if (kind < kFloat32 || kind > kGenerated) return "unknown kind";
  const std::optional<uint64_t> elements = Elements(record.shape);
  if (!elements || record.stride == 0) return "impossible shape or stride";
  const uint64_t stored = *elements / record.stride + (*elements % record.stride != 0 ? 1 : 0);
  if (kind == kGenerated ? count != 2 || record.stride != 1 : count != stored) return "count and shape disagree";
  const auto data = in.Take(count * 4);  // count <= kElementsMax
  if (!in.ok()) return "cut off in a record's data";
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(Cursor(data.subspan(i * 4, 4)).Number(4));
    if (kind == kInt32) {
      record.ints.push_back(std::bit_cast<int32_t>(bits));
    } else {
      record.floats.push_back(std::bit_cast<float>(bits));
    }
  }
  if (kind == kGenerated) Generate(name, seed, *elements, record);
  return {};
}

}  // namespace

uint64_t Record::row() const {
  uint64_t elements = 1;
  for (size_t i = 1; i < shape.size(); ++i) elements *= shape[i];
  return elements;
}

std::optional<VectorFile> VectorFile::Parse(std::span<const unsigned char> bytes, std::string& error) {
  Cursor in(bytes);
  VectorFile file;
  if (in.Text(kMagic.size()) != kMagic) {
    error = "no magic";
    return std::nullopt;
  }
  const uint64_t seed = in.Number(8);
  const uint64_t count = in.Number(4);
  for (uint64_t i = 0; in.ok() && i < count; ++i) {
    std::string name = in.Text(in.Number(2));
    Record record;
    error = ReadRecord(in, name, seed, record);
    if (error.empty() && !file.records_.emplace(name, std::move(record)).second) error = "appears twice";
    if (!error.empty()) {
      error = name + ": " + error;
      return std::nullopt;
    }
  }
  if (!in.ok() || !in.empty()) {
    error = in.ok() ? "bytes after the last record" : "cut off";
    return std::nullopt;
  }
  return file;
}

std::optional<VectorFile> VectorFile::Load(const std::string& path, std::string& error) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    error = path + ": cannot open";
    return std::nullopt;
  }
  const std::vector<char> bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  std::optional<VectorFile> file =
      Parse(std::span(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()), error);
  if (!file) error = path + ": " + error;
  return file;
}

const Record* VectorFile::Find(std::string_view name) const {
  const auto found = records_.find(std::string(name));
  return found == records_.end() ? nullptr : &found->second;
}

}  // namespace kvstrata::golden
