// SPDX-License-Identifier: Apache-2.0
// Reads the golden vectors. The format is written down in generate/vector_file.py.
//
// Thread rule: a loaded file is immutable.
// I1: every length in the bytes is checked against what is left before it is used; nothing is allocated on the word of
// the file alone but generated tensors, which are bounded by kElementsMax.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvstrata::golden {

// One tensor: elements 0, stride, 2*stride, ... of the flattened shape. Of floats and ints the one that the kind says
// is filled. Generated records are float records after loading.
struct Record {
  std::vector<uint64_t> shape;
  uint64_t stride = 1;
  std::vector<float> floats;
  std::vector<int32_t> ints;

  // Elements of one row, that is of the shape without its outermost dimension.
  uint64_t row() const;
};

class VectorFile {
 public:
  static constexpr uint64_t kElementsMax = uint64_t{1} << 24;

  // Empty, with the reason in `error`, if the bytes are not exactly one well-formed file.
  static std::optional<VectorFile> Parse(std::span<const unsigned char> bytes, std::string& error);
  static std::optional<VectorFile> Load(const std::string& path, std::string& error);

  // nullptr if there is no such record.
  const Record* Find(std::string_view name) const;

 private:
  std::unordered_map<std::string, Record> records_;
};

}  // namespace kvstrata::golden
