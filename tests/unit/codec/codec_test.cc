// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace layout = kvstrata::core::layout;
using namespace kvstrata::core::codec;

namespace {

// A toy packing: a row of 4 floats becomes 4 bytes of whole numbers in -128..127; others are rounded, NaN refused.
bool PackToy(void*, const std::byte* source, size_t rows, std::byte* packed) {
  for (size_t i = 0; i < 4 * rows; ++i) {
    float value;
    std::memcpy(&value, source + 4 * i, 4);
    if (std::isnan(value)) return false;
    packed[i] = static_cast<std::byte>(static_cast<int8_t>(std::lround(std::fmin(std::fmax(value, -128.f), 127.f))));
  }
  return true;
}

bool UnpackToy(void* calls, const std::byte* packed, size_t rows, std::byte* source) {
  if (calls != nullptr) ++*static_cast<int*>(calls);
  for (size_t i = 0; i < 4 * rows; ++i) {
    const float value = static_cast<float>(static_cast<int8_t>(packed[i]));
    std::memcpy(source + 4 * i, &value, 4);
  }
  return true;
}

RowPacker Toy() { return {PackToy, UnpackToy, nullptr, 16, 4}; }

struct Buffers {
  explicit Buffers(std::vector<float> values)
      : source(4 * values.size()), packed(values.size()), scratch(4 * values.size()) {
    std::ranges::copy(std::as_bytes(std::span(values)), source.begin());
  }
  std::vector<std::byte> source, packed, scratch;
};

absl::StatusOr<GridResult> Try(std::vector<float> values) {
  Buffers buffers(std::move(values));
  return PackOnGrid(Toy(), buffers.source, buffers.packed, buffers.scratch);
}

layout::Stream RowsOf(layout::Packing packing, uint32_t row_bytes, uint32_t flags) {
  return {layout::StreamKind::kRows, layout::Role::kCsaEntry, 0, 4, row_bytes, 0, packing, flags};
}

}  // namespace

TEST_CASE("rows on the grid are packed, others are not, to the bit") {
  CHECK(Try({1, 2, 3, 4}).value() == GridResult::kOnGrid);
  CHECK(Try({1, 2, 3, 4, -128, 127, 0, 5}).value() == GridResult::kOnGrid);
  CHECK(Try({1, 2, 3, 4.5f}).value() == GridResult::kOffGrid);
  CHECK(Try({1, 2, 3, 4, 5, 6, 7, 200}).value() == GridResult::kOffGrid);
  CHECK(Try({1, 2, -0.f, 4}).value() == GridResult::kOffGrid);  // equal by ==, not by bits
  CHECK(Try({1, 2, NAN, 4}).value() == GridResult::kOffGrid);
  CHECK(Try({}).value() == GridResult::kOnGrid);
}

TEST_CASE("rows that cannot be packed are never unpacked") {
  int calls = 0;
  RowPacker packer = Toy();
  packer.context = &calls;
  Buffers buffers({1, 2, NAN, 4});
  CHECK(PackOnGrid(packer, buffers.source, buffers.packed, buffers.scratch).value() == GridResult::kOffGrid);
  CHECK(calls == 0);
}

TEST_CASE("buffers that do not fit are refused by name") {
  Buffers buffers({1, 2, 3, 4, 5, 6, 7, 8});
  const auto field = [](const absl::StatusOr<GridResult>& result) { return base::FieldOf(result.status()); };
  const std::span<const std::byte> source(buffers.source);
  const std::span<std::byte> packed(buffers.packed);
  const std::span<std::byte> scratch(buffers.scratch);
  CHECK(field(PackOnGrid(Toy(), source.first(31), packed, scratch)) == "source");
  CHECK(field(PackOnGrid(Toy(), source, packed.first(7), scratch)) == "packed");
  CHECK(field(PackOnGrid(Toy(), source, packed.first(4), scratch)) == "packed");
  CHECK(field(PackOnGrid(Toy(), source, packed, scratch.first(16))) == "scratch");
  RowPacker packer = Toy();
  packer.unpack = nullptr;
  CHECK(field(PackOnGrid(packer, source, packed, scratch)) == "packer");
  packer = Toy();
  packer.source_row_bytes = 0;
  CHECK(field(PackOnGrid(packer, source, packed, scratch)) == "packer");
}

TEST_CASE("a lossy codec is refused on an exact stream (V19)") {
  const layout::Stream exact = RowsOf(layout::Packing::kF32, 2048, layout::kExact);
  const layout::Stream loose = RowsOf(layout::Packing::kF32, 2048, 0);
  const absl::Status refused = StoredRowBytes(exact, Codec::kFp8Row584Lossy).status();
  CHECK(base::CodeOf(refused) == base::Code::kInvalidArgument);
  CHECK(base::FieldOf(refused) == "codec");
  CHECK(StoredRowBytes(loose, Codec::kFp8Row584Lossy).value() == 584);
  CHECK(StoredRowBytes(exact, Codec::kFp8Row584).value() == 584);
  CHECK(StoredRowBytes(exact, Codec::kRaw).value() == 2048);
}

TEST_CASE("a codec fits only rows of its width in f32 or bf16") {
  CHECK(StoredRowBytes(RowsOf(layout::Packing::kBf16, 1024, 1), Codec::kFp4Row288).value() == 288);
  CHECK(StoredRowBytes(RowsOf(layout::Packing::kBf16, 256, 1), Codec::kFp4Key68).value() == 68);
  CHECK(StoredRowBytes(RowsOf(layout::Packing::kF32, 512, 1), Codec::kFp8Key132).value() == 132);
  CHECK_FALSE(StoredRowBytes(RowsOf(layout::Packing::kBf16, 256, 1), Codec::kFp8Row528).ok());
  CHECK_FALSE(StoredRowBytes(RowsOf(layout::Packing::kF16, 1024, 1), Codec::kFp8Row528).ok());
  CHECK_FALSE(StoredRowBytes(RowsOf(layout::Packing::kFp8Row584, 584, 1), Codec::kFp8Row584).ok());
  CHECK_FALSE(StoredRowBytes(RowsOf(layout::Packing::kF32, 2048, 0), static_cast<Codec>(9)).ok());
}

TEST_CASE("codec numbers come from disk and are checked") {
  for (const int32_t number : {1, 10, 11, 12, 13, 14, 110, 111, 112, 113, 114}) {
    const auto codec = CodecFromNumber(number);
    REQUIRE(codec.ok());
    CHECK(static_cast<int32_t>(*codec) == number);
    CHECK(IsLossy(*codec) == (number >= 100));
    CHECK(CodecName(*codec) != "unknown");
  }
  for (const int32_t number : {0, 2, 15, -1, 100, 115, 1 << 30}) {
    CHECK(base::CodeOf(CodecFromNumber(number).status()) == base::Code::kCorrupt);
    CHECK(CodecName(static_cast<Codec>(number)) == "unknown");
  }
}
