// SPDX-License-Identifier: Apache-2.0
// A coded slice: refused, or exactly the rows asked for, which come back from another round. The first byte says of
// which packing the rows are, the second how many.
#include <algorithm>
#include <vector>

#include "lib/base/status.h"
#include "lib/codec/slice_codec.h"
#include "tests/fuzz/layout/target.h"

namespace base = kvstrata::core::base;
namespace codec = kvstrata::core::codec;
namespace layout = kvstrata::core::layout;

namespace {

constexpr struct {
  layout::Packing packing;
  uint32_t row_bytes;
} kRows[] = {
    {layout::Packing::kRaw, 32},        {layout::Packing::kF32, 64},        {layout::Packing::kBf16, 128},
    {layout::Packing::kFp8Row584, 584}, {layout::Packing::kFp8Row528, 528}, {layout::Packing::kFp4Row288, 288},
    {layout::Packing::kFp8Key132, 132}, {layout::Packing::kFp4Key68, 68},   {layout::Packing::kFp8Row656, 656}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  layout::Stream stream;
  stream.packing = kRows[data[0] % std::size(kRows)].packing;
  stream.row_bytes = kRows[data[0] % std::size(kRows)].row_bytes;
  const size_t bytes = size_t{data[1]} * stream.row_bytes;
  const std::vector<std::byte> coded(std::as_bytes(std::span(data, size)).begin() + 2,
                                     std::as_bytes(std::span(data, size)).end());
  std::vector<std::byte> rows(bytes), scratch(2 * bytes);
  codec::SliceDecoder decoder;
  const absl::Status status = decoder.Decode(stream, coded, scratch, rows);
  Promise(status.ok() || base::CodeOf(status) == base::Code::kCorrupt);
  if (!status.ok()) return 0;
  std::vector<std::byte> again(bytes), out(bytes);
  codec::SliceEncoder encoder;
  out.resize(encoder.Encode(stream, rows, scratch, out));
  Promise(out.empty() || (decoder.Decode(stream, out, scratch, again).ok() && again == rows));
  return 0;
}
