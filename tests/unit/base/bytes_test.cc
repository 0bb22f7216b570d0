// SPDX-License-Identifier: Apache-2.0
#include "lib/base/bytes.h"

#include <array>

#include "lib/base/checked.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;

TEST_CASE("integers are little-endian whatever the machine") {
  std::array<std::byte, 8> bytes{};
  base::StoreLittleEndian<uint64_t>(bytes.data(), 0x0102030405060708u);
  CHECK(std::to_integer<int>(bytes[0]) == 8);
  CHECK(std::to_integer<int>(bytes[7]) == 1);
  CHECK(base::LoadLittleEndian<uint64_t>(bytes.data()) == 0x0102030405060708u);
  CHECK(base::LoadLittleEndian<uint16_t>(bytes.data()) == 0x0708u);
}

TEST_CASE("a reader never passes the end and stays failed") {
  std::vector<std::byte> bytes;
  base::ByteWriter writer(&bytes);
  writer.Write<uint32_t>(7);
  REQUIRE(writer.WriteFramed(base::AsBytes("abc")));
  for (size_t size = 0; size <= bytes.size(); ++size) {
    CAPTURE(size);
    base::ByteReader reader(base::ByteView(bytes).first(size));
    uint32_t number = 0;
    base::ByteView framed;
    const bool whole = reader.Read(&number) && reader.ReadFramed(&framed);
    CHECK(whole == (size == bytes.size()));
    CHECK(reader.AtEnd() == whole);
    if (whole) CHECK(base::AsText(framed) == "abc");
    uint8_t more = 0;
    CHECK_FALSE(reader.Read(&more));
    CHECK(reader.remaining() == 0);
  }
}

TEST_CASE("a length near 2^64 does not wrap around") {
  const std::array<std::byte, 4> bytes{};
  base::ByteReader reader(bytes);
  CHECK_FALSE(reader.Skip(UINT64_MAX));
  CHECK_FALSE(reader.ok());
}

TEST_CASE("checked arithmetic says when a result does not fit") {
  CHECK(base::CheckedAdd<uint64_t>(UINT64_MAX - 1, 1) == UINT64_MAX);
  CHECK_FALSE(base::CheckedAdd<uint64_t>(UINT64_MAX, 1).has_value());
  CHECK_FALSE(base::CheckedSub<uint32_t>(1, 2).has_value());
  CHECK(base::CheckedMul<uint32_t>(65535, 65537) == UINT32_MAX);
  CHECK_FALSE(base::CheckedMul<uint32_t>(65536, 65536).has_value());
  CHECK(base::CheckedMul<uint32_t>(0, UINT32_MAX) == 0u);
  CHECK(base::CheckedRoundUp<uint64_t>(4097, 4096) == 8192u);
  CHECK(base::CheckedRoundUp<uint64_t>(4096, 4096) == 4096u);
  CHECK_FALSE(base::CheckedRoundUp<uint64_t>(UINT64_MAX, 4096).has_value());
  // Types narrower than int are not widened by the language's promotions.
  CHECK_FALSE(base::CheckedAdd<uint8_t>(200, 100).has_value());
}
