// SPDX-License-Identifier: Apache-2.0
// The reader of the vector files refuses everything that is not exactly one well-formed file.
#include "tests/golden/vector_file.h"

#include <string>
#include <vector>

#include "tests/support/catch.hpp"

using kvstrata::golden::Record;
using kvstrata::golden::VectorFile;

namespace {

using Bytes = std::vector<unsigned char>;

void Put(Bytes& bytes, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes.push_back(static_cast<unsigned char>(value >> (8 * i)));
}

struct Head {
  uint64_t kind = 2;
  std::vector<uint64_t> shape = {2, 3};
  uint64_t stride = 2;
  uint64_t count = 3;
};

void PutRecord(Bytes& bytes, const std::string& name, const Head& head) {
  Put(bytes, name.size(), 2);
  bytes.insert(bytes.end(), name.begin(), name.end());
  Put(bytes, head.kind, 1);
  Put(bytes, head.shape.size(), 1);
  for (const uint64_t dimension : head.shape) Put(bytes, dimension, 8);
  Put(bytes, head.stride, 8);
  Put(bytes, head.count, 8);
  for (uint64_t i = 0; i < 3; ++i) Put(bytes, 100 + i, 4);
}

Bytes OneRecord(const Head& head = {}) {
  const std::string magic = "KVGOLD01";
  Bytes bytes(magic.begin(), magic.end());
  Put(bytes, 7, 8);
  Put(bytes, 1, 4);
  PutRecord(bytes, "a", head);
  return bytes;
}

bool Parses(const Bytes& bytes) {
  std::string error;
  const bool parsed = VectorFile::Parse(bytes, error).has_value();
  CHECK(parsed == error.empty());
  return parsed;
}

}  // namespace

TEST_CASE("a record comes back as written") {
  std::string error;
  const std::optional<VectorFile> file = VectorFile::Parse(OneRecord(), error);
  REQUIRE(file);
  const Record* record = file->Find("a");
  REQUIRE(record != nullptr);
  CHECK(record->shape == std::vector<uint64_t>{2, 3});
  CHECK(record->stride == 2);
  CHECK(record->row() == 3);
  CHECK(record->ints == std::vector<int32_t>{100, 101, 102});
  CHECK(file->Find("b") == nullptr);
}

TEST_CASE("a file cut anywhere, or with bytes added, is refused") {
  const Bytes whole = OneRecord();
  for (size_t size = 0; size < whole.size(); ++size) {
    INFO("first " << size << " bytes");
    CHECK_FALSE(Parses(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size))));
  }
  Bytes longer = whole;
  longer.push_back(0);
  CHECK_FALSE(Parses(longer));
}

TEST_CASE("contradictory heads are refused, without allocating what they claim") {
  CHECK(Parses(OneRecord()));
  CHECK_FALSE(Parses(OneRecord({.kind = 0})));
  CHECK_FALSE(Parses(OneRecord({.kind = 4})));
  CHECK_FALSE(Parses(OneRecord({.kind = 3})));
  CHECK_FALSE(Parses(OneRecord({.stride = 0})));
  CHECK_FALSE(Parses(OneRecord({.count = 4})));
  CHECK_FALSE(Parses(OneRecord({.count = uint64_t{1} << 62})));
  CHECK_FALSE(Parses(OneRecord({.shape = {uint64_t{1} << 32, uint64_t{1} << 32}})));
  CHECK_FALSE(Parses(OneRecord({.shape = {uint64_t{1} << 24, 2}})));
  CHECK_FALSE(Parses(OneRecord({.shape = {0, 3}})));
}

TEST_CASE("a name may appear only once") {
  Bytes bytes = OneRecord();
  bytes[16] = 2;
  PutRecord(bytes, "b", {});
  CHECK(Parses(bytes));
  bytes = OneRecord();
  bytes[16] = 2;
  PutRecord(bytes, "a", {});
  CHECK_FALSE(Parses(bytes));
}
