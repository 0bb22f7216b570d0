// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/slice_codec.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "lib/base/status.h"

namespace kvstrata::core::codec {
namespace {

// Form 1: planes. Form 2: the number of a packing, then planes of rows in that packing.
constexpr std::byte kPlanes{1};
constexpr std::byte kPackedPlanes{2};
constexpr size_t kFormBytes = 1;
constexpr size_t kPackedFormBytes = 2;
constexpr size_t kPlaneSizeBytes = 4;
// Literals are entropy-coded from level 1 on; higher levels look for repetitions, of which rows have next to none
// (reference, limits 1.6: levels 3 and 9 give the same ratio).
constexpr int kLevel = 1;
// A plane or a slice that gains less than this share is kept as it is: decoding it would cost more than reading it.
constexpr uint64_t kLeastGain = 32;
// Of shorter planes there is next to nothing to be had: codes gain from 512 bytes on; scales and the high bytes of bf16
// gain half of their bytes from here on, up to 50 bytes between 64 and 128, and nothing below, where a frame's header
// and Huffman table are all of what could be saved. Each frame is one more to be set up for decoding.
constexpr uint64_t kLeastPlaneBytes = 128;

// Some columns of a row: numbers of `width` bytes, whose first bytes make one plane, second bytes the next, ...
struct Column {
  uint32_t bytes = 0;
  uint32_t width = 1;
};

constexpr size_t kMaxColumns = 3;

// How rows of a packing are taken apart; the columns' bytes add up to a row's.
struct Split {
  uint32_t row_bytes = 0;
  size_t count = 0;
  Column columns[kMaxColumns];
};

Split SplitOf(const layout::Stream& stream, uint64_t bytes) {
  const auto of = [&](std::initializer_list<Column> columns) {
    Split split{stream.row_bytes, columns.size(), {}};
    std::ranges::copy(columns, split.columns);
    return split;
  };
  const auto numbers = [&](uint32_t width) {
    return of({{stream.row_bytes, stream.row_bytes % width == 0 ? width : 1}});
  };
  switch (stream.packing) {
    case layout::Packing::kF32: return numbers(4);
    case layout::Packing::kBf16:
    case layout::Packing::kF16: return numbers(2);
    case layout::Packing::kFp8Row584: return of({{448, 1}, {128, 2}, {8, 1}});
    case layout::Packing::kFp8Row528: return of({{512, 1}, {16, 1}});
    case layout::Packing::kFp4Row288: return of({{256, 1}, {32, 1}});
    case layout::Packing::kFp8Key132: return of({{128, 1}, {4, 4}});
    case layout::Packing::kFp4Key68: return of({{64, 1}, {4, 1}});
    case layout::Packing::kFp8Row656: return of({{512, 1}, {16, 4}, {128, 2}});
    case layout::Packing::kRaw: break;
  }
  // The engine's own bytes are one plane, be they rows or a state of varying size.
  return {static_cast<uint32_t>(bytes), 1, {{static_cast<uint32_t>(bytes), 1}}};
}

bool Fits(const Split& split, uint64_t bytes) {
  return bytes > 0 && bytes <= kMaxCodedSliceBytes && split.row_bytes > 0 && bytes % split.row_bytes == 0;
}

// Between a column of `rows` rows, `row_bytes` apart, and its W planes, one after another. A number's bytes are moved
// together, so that compilers make vector instructions of it.
template <size_t W>
void TakeApart(const std::byte* rows, uint64_t count, const Split& split, const Column& column, std::byte* planes) {
  const uint64_t numbers = column.bytes / W;
  const uint64_t plane_bytes = count * numbers;
  for (uint64_t row = 0; row < count; ++row) {
    const std::byte* const from = rows + row * split.row_bytes;
    std::byte* const to = planes + row * numbers;
    for (uint64_t i = 0; i < numbers; ++i) {
      for (size_t k = 0; k < W; ++k) to[k * plane_bytes + i] = from[i * W + k];
    }
  }
}

template <size_t W>
void PutTogether(const std::byte* planes, uint64_t count, const Split& split, const Column& column, std::byte* rows) {
  const uint64_t numbers = column.bytes / W;
  const uint64_t plane_bytes = count * numbers;
  for (uint64_t row = 0; row < count; ++row) {
    const std::byte* const from = planes + row * numbers;
    std::byte* const to = rows + row * split.row_bytes;
    for (uint64_t i = 0; i < numbers; ++i) {
      for (size_t k = 0; k < W; ++k) to[i * W + k] = from[k * plane_bytes + i];
    }
  }
}

void TakeApart(const std::byte* rows, uint64_t count, const Split& split, const Column& column, std::byte* planes) {
  switch (column.width) {
    case 4: return TakeApart<4>(rows, count, split, column, planes);
    case 2: return TakeApart<2>(rows, count, split, column, planes);
    default: break;
  }
  for (uint64_t row = 0; row < count; ++row) {
    std::memcpy(planes + row * column.bytes, rows + row * split.row_bytes, column.bytes);
  }
}

void PutTogether(const std::byte* planes, uint64_t count, const Split& split, const Column& column, std::byte* rows) {
  switch (column.width) {
    case 4: return PutTogether<4>(planes, count, split, column, rows);
    case 2: return PutTogether<2>(planes, count, split, column, rows);
    default: break;
  }
  for (uint64_t row = 0; row < count; ++row) {
    std::memcpy(rows + row * split.row_bytes, planes + row * column.bytes, column.bytes);
  }
}

// A stream of packed rows, as far as taking them apart needs to know it.
layout::Stream PackedStream(layout::Packing packing, const RowPacker& packer) {
  layout::Stream stream;
  stream.packing = packing;
  stream.row_bytes = packer.packed_row_bytes;
  return stream;
}

// The most that a coded slice may take.
base::MutableBytes RoomOf(base::ByteView rows, base::MutableBytes coded) {
  return coded.first(rows.size() - std::max<uint64_t>(rows.size() / kLeastGain, 1));
}

absl::Status BadSlice(const std::string& problem) { return base::Corrupt("coded slice", problem); }

}  // namespace

// --- encoding ----------------------------------------------------------------------------------------------------

struct SliceEncoder::Context {
  ZSTD_CCtx* zstd = ZSTD_createCCtx();
  ~Context() { ZSTD_freeCCtx(zstd); }

  // Appends one plane at *used, if it fits.
  bool Add(base::ByteView plane, bool squeeze, base::MutableBytes coded, uint64_t* used) const;
  // All planes of whole rows, by way of `scratch`.
  bool AddAll(const Split& split, base::ByteView rows, bool squeeze, base::MutableBytes scratch,
              base::MutableBytes coded, uint64_t* used) const;
};

bool SliceEncoder::Context::Add(base::ByteView plane, bool squeeze, base::MutableBytes coded, uint64_t* used) const {
  if (coded.size() - *used < kPlaneSizeBytes) return false;
  const base::MutableBytes room = coded.subspan(*used + kPlaneSizeBytes);
  uint64_t size = plane.size();
  if (squeeze && plane.size() >= kLeastPlaneBytes) {
    const uint64_t most = plane.size() - plane.size() / kLeastGain;
    const size_t packed =
        ZSTD_compressCCtx(zstd, room.data(), std::min<uint64_t>(room.size(), most), plane.data(), plane.size(), kLevel);
    if (ZSTD_isError(packed) == 0) size = packed;
  }
  if (size == plane.size()) {
    if (room.size() < size) return false;
    std::memcpy(room.data(), plane.data(), size);
  }
  base::StoreLittleEndian(coded.data() + *used, static_cast<uint32_t>(size));
  *used += kPlaneSizeBytes + size;
  return true;
}

bool SliceEncoder::Context::AddAll(const Split& split, base::ByteView rows, bool squeeze, base::MutableBytes scratch,
                                   base::MutableBytes coded, uint64_t* used) const {
  const uint64_t count = rows.size() / split.row_bytes;
  uint64_t offset = 0;
  for (const Column& column : std::span(split.columns).first(split.count)) {
    TakeApart(rows.data() + offset, count, split, column, scratch.data());
    const uint64_t plane_bytes = count * column.bytes / column.width;
    for (uint32_t plane = 0; plane < column.width; ++plane) {
      if (!Add(scratch.subspan(plane * plane_bytes, plane_bytes), squeeze, coded, used)) return false;
    }
    offset += column.bytes;
  }
  return true;
}

SliceEncoder::SliceEncoder() : context_(std::make_unique<Context>()) {}
SliceEncoder::~SliceEncoder() = default;

uint64_t SliceEncoder::Encode(const layout::Stream& stream, base::ByteView rows, base::MutableBytes scratch,
                              base::MutableBytes coded) {
  const Split split = SplitOf(stream, rows.size());
  if (context_->zstd == nullptr || !Fits(split, rows.size())) return 0;
  if (scratch.size() < rows.size() || coded.size() < rows.size()) return 0;
  const base::MutableBytes out = RoomOf(rows, coded);
  if (out.size() < kFormBytes) return 0;
  out[0] = kPlanes;
  uint64_t used = kFormBytes;
  return context_->AddAll(split, rows, /*squeeze=*/true, scratch, out, &used) ? used : 0;
}

uint64_t SliceEncoder::EncodePacked(const layout::Stream& stream, layout::Packing packed, const RowPacker& packer,
                                    bool squeeze, base::ByteView rows, base::MutableBytes scratch,
                                    base::MutableBytes coded) {
  if (context_->zstd == nullptr || !Fits(SplitOf(stream, rows.size()), rows.size())) return 0;
  if (packer.source_row_bytes != stream.row_bytes || packer.packed_row_bytes >= stream.row_bytes) return 0;
  if (scratch.size() < 2 * rows.size() || coded.size() < rows.size()) return 0;
  const base::MutableBytes form = scratch.first(rows.size() / stream.row_bytes * packer.packed_row_bytes);
  const base::MutableBytes rest = scratch.subspan(form.size());
  const absl::StatusOr<GridResult> grid = PackOnGrid(packer, rows, form, rest.first(rows.size()));
  if (!grid.ok() || *grid == GridResult::kOffGrid) return 0;
  const base::MutableBytes out = RoomOf(rows, coded);
  if (out.size() < kPackedFormBytes) return 0;
  out[0] = kPackedPlanes;
  out[1] = static_cast<std::byte>(packed);
  uint64_t used = kPackedFormBytes;
  const Split split = SplitOf(PackedStream(packed, packer), form.size());
  return context_->AddAll(split, form, squeeze, rest, out, &used) ? used : 0;
}

// --- decoding ----------------------------------------------------------------------------------------------------

struct SliceDecoder::Context {
  ZSTD_DCtx* zstd = ZSTD_createDCtx();
  ~Context() { ZSTD_freeDCtx(zstd); }

  // The next plane of the slice, of exactly plane.size() bytes.
  absl::Status Take(base::ByteReader& in, base::MutableBytes plane) const;
  // All planes of whole rows, and nothing behind them.
  absl::Status TakeAll(const Split& split, base::ByteView planes, base::MutableBytes scratch,
                       base::MutableBytes rows) const;
};

absl::Status SliceDecoder::Context::Take(base::ByteReader& in, base::MutableBytes plane) const {
  base::ByteView stored;
  if (!in.ReadFramed(&stored)) return BadSlice("a plane is cut off");
  if (stored.size() > plane.size()) return BadSlice("a plane is larger than its rows");
  if (stored.size() == plane.size()) {
    std::memcpy(plane.data(), stored.data(), plane.size());
    return absl::OkStatus();
  }
  // Frames of RFC 8878 alone: a library may also know skippable frames, and those of its own past.
  const bool is_frame =
      stored.size() >= sizeof(uint32_t) && base::LoadLittleEndian<uint32_t>(stored.data()) == ZSTD_MAGICNUMBER;
  if (!is_frame || ZSTD_findFrameCompressedSize(stored.data(), stored.size()) != stored.size()) {
    return BadSlice("a plane is not exactly one zstd frame");
  }
  // The frame's own word for its size is not needed: what it makes must fill the plane, and has no more room than that.
  const size_t made = ZSTD_decompressDCtx(zstd, plane.data(), plane.size(), stored.data(), stored.size());
  if (ZSTD_isError(made) != 0) return BadSlice(ZSTD_getErrorName(made));
  if (made != plane.size()) return BadSlice("a plane is smaller than its rows");
  return absl::OkStatus();
}

absl::Status SliceDecoder::Context::TakeAll(const Split& split, base::ByteView planes, base::MutableBytes scratch,
                                            base::MutableBytes rows) const {
  base::ByteReader in(planes);
  const uint64_t count = rows.size() / split.row_bytes;
  uint64_t offset = 0;
  for (const Column& column : std::span(split.columns).first(split.count)) {
    const uint64_t plane_bytes = count * column.bytes / column.width;
    for (uint32_t plane = 0; plane < column.width; ++plane) {
      absl::Status status = Take(in, scratch.subspan(plane * plane_bytes, plane_bytes));
      if (!status.ok()) return status;
    }
    PutTogether(scratch.data(), count, split, column, rows.data() + offset);
    offset += column.bytes;
  }
  if (!in.AtEnd()) return BadSlice("bytes behind the last plane");
  return absl::OkStatus();
}

SliceDecoder::SliceDecoder(FindPacker find_packer) : find_packer_(find_packer), context_(std::make_unique<Context>()) {}
SliceDecoder::~SliceDecoder() = default;

absl::Status SliceDecoder::Decode(const layout::Stream& stream, base::ByteView coded, base::MutableBytes scratch,
                                  base::MutableBytes rows) {
  const Split split = SplitOf(stream, rows.size());
  if (context_->zstd == nullptr) return base::MakeStatus(base::Code::kOutOfMemory, "zstd", "no memory to decode with");
  if (!Fits(split, rows.size()) || scratch.size() < 2 * rows.size()) return BadSlice("no such rows are coded");
  if (coded.size() >= kFormBytes && coded[0] == kPlanes) {
    return context_->TakeAll(split, coded.subspan(kFormBytes), scratch, rows);
  }
  if (coded.size() >= kPackedFormBytes && coded[0] == kPackedPlanes) {
    return DecodePacked(stream, coded, scratch, rows);
  }
  return BadSlice("the form is not known");
}

absl::Status SliceDecoder::DecodePacked(const layout::Stream& stream, base::ByteView coded, base::MutableBytes scratch,
                                        base::MutableBytes rows) {
  // The numbers of lossless codecs are those of packings.
  const absl::StatusOr<Codec> codec = CodecFromNumber(std::to_integer<int32_t>(coded[1]));
  if (!codec.ok() || IsLossy(*codec) || *codec == Codec::kRaw) return BadSlice("the packing is not known");
  if (!StoredRowBytes(stream, *codec).ok()) return BadSlice("a packing of other rows");
  const auto packing = static_cast<layout::Packing>(*codec);
  const RowPacker* const packer = find_packer_ == nullptr ? nullptr : find_packer_(packing, stream.packing);
  if (packer == nullptr) return base::MakeStatus(base::Code::kUnsupported, "coded slice", "no functions to unpack it");
  const uint64_t count = rows.size() / stream.row_bytes;
  const base::MutableBytes packed = scratch.first(count * packer->packed_row_bytes);
  const Split split = SplitOf(PackedStream(packing, *packer), packed.size());
  absl::Status status =
      context_->TakeAll(split, coded.subspan(kPackedFormBytes), scratch.subspan(packed.size()), packed);
  if (!status.ok()) return status;
  const bool unpacked = packer->unpack(packer->context, packed.data(), count, rows.data());
  return unpacked ? absl::OkStatus() : BadSlice("packed rows that cannot be unpacked");
}

}  // namespace kvstrata::core::codec
