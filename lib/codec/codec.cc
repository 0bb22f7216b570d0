// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/codec.h"

#include <cstring>
#include <string>

#include "lib/base/status.h"

namespace kvstrata::core::codec {
namespace {

struct CodecFacts {
  Codec codec;
  std::string_view name;
  bool lossy;
  uint32_t elements;   // of one row; 0: any
  uint32_t row_bytes;  // stored; 0: as the source
};

constexpr CodecFacts kFacts[] = {
    {Codec::kRaw, "raw", false, 0, 0},
    {Codec::kFp8Row584, "fp8_row_584", false, 512, 584},
    {Codec::kFp8Row528, "fp8_row_528", false, 512, 528},
    {Codec::kFp4Row288, "fp4_row_288", false, 512, 288},
    {Codec::kFp8Key132, "fp8_key_132", false, 128, 132},
    {Codec::kFp4Key68, "fp4_key_68", false, 128, 68},
    {Codec::kFp8Row584Lossy, "fp8_row_584_lossy", true, 512, 584},
    {Codec::kFp8Row528Lossy, "fp8_row_528_lossy", true, 512, 528},
    {Codec::kFp4Row288Lossy, "fp4_row_288_lossy", true, 512, 288},
    {Codec::kFp8Key132Lossy, "fp8_key_132_lossy", true, 128, 132},
    {Codec::kFp4Key68Lossy, "fp4_key_68_lossy", true, 128, 68},
};

const CodecFacts* FactsOf(Codec codec) {
  for (const CodecFacts& facts : kFacts) {
    if (facts.codec == codec) return &facts;
  }
  return nullptr;
}

uint32_t ElementBytes(layout::Packing packing) {
  if (packing == layout::Packing::kF32) return 4;
  return packing == layout::Packing::kBf16 ? 2 : 0;
}

}  // namespace

bool IsLossy(Codec codec) {
  const CodecFacts* facts = FactsOf(codec);
  return facts != nullptr && facts->lossy;
}

std::string_view CodecName(Codec codec) {
  const CodecFacts* facts = FactsOf(codec);
  return facts == nullptr ? "unknown" : facts->name;
}

absl::StatusOr<Codec> CodecFromNumber(int32_t number) {
  const Codec codec = static_cast<Codec>(number);
  if (FactsOf(codec) == nullptr) return base::Corrupt("codec", std::to_string(number) + " is not a codec");
  return codec;
}

absl::StatusOr<uint32_t> StoredRowBytes(const layout::Stream& stream, Codec codec) {
  const CodecFacts* facts = FactsOf(codec);
  if (facts == nullptr) {
    return base::InvalidArgument("codec", std::to_string(static_cast<int32_t>(codec)) + " is not a codec");
  }
  if (codec == Codec::kRaw) return stream.row_bytes;
  const std::string name(facts->name);
  if (facts->lossy && (stream.flags & layout::kExact) != 0) {
    return base::InvalidArgument("codec", name + " is lossy, the stream is exact");
  }
  const uint32_t element = ElementBytes(stream.packing);
  if (element == 0) {
    return base::InvalidArgument(
        "codec", name + " packs f32 or bf16 rows, these are " + std::string(layout::PackingName(stream.packing)));
  }
  if (stream.row_bytes != facts->elements * element) {
    return base::InvalidArgument("codec", name + " packs rows of " + std::to_string(facts->elements * element) +
                                              " bytes, these have " + std::to_string(stream.row_bytes));
  }
  return facts->row_bytes;
}

absl::StatusOr<GridResult> PackOnGrid(const RowPacker& packer, std::span<const std::byte> source,
                                      std::span<std::byte> packed, std::span<std::byte> scratch) {
  if (packer.pack == nullptr || packer.unpack == nullptr) return base::InvalidArgument("packer", "a function is null");
  if (packer.source_row_bytes == 0 || packer.packed_row_bytes == 0) {
    return base::InvalidArgument("packer", "a row size is 0");
  }
  const size_t rows = source.size() / packer.source_row_bytes;
  if (source.size() % packer.source_row_bytes != 0) {
    return base::InvalidArgument("source", std::to_string(source.size()) + " bytes are not whole rows of " +
                                               std::to_string(packer.source_row_bytes));
  }
  // Divided, not multiplied: no product of outside numbers can wrap.
  if (packed.size() % packer.packed_row_bytes != 0 || packed.size() / packer.packed_row_bytes != rows) {
    return base::InvalidArgument(
        "packed", std::to_string(packed.size()) + " bytes do not hold " + std::to_string(rows) + " rows");
  }
  if (scratch.size() != source.size()) {
    return base::InvalidArgument("scratch",
                                 std::to_string(scratch.size()) + " bytes, not " + std::to_string(source.size()));
  }
  if (rows == 0) return GridResult::kOnGrid;
  if (!packer.pack(packer.context, source.data(), rows, packed.data())) return GridResult::kOffGrid;
  if (!packer.unpack(packer.context, packed.data(), rows, scratch.data())) return GridResult::kOffGrid;
  const bool same = std::memcmp(scratch.data(), source.data(), source.size()) == 0;
  return same ? GridResult::kOnGrid : GridResult::kOffGrid;
}

}  // namespace kvstrata::core::codec
