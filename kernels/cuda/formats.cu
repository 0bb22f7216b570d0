// SPDX-License-Identifier: Apache-2.0
// Packed rows, conversions, Hadamard.
//
// A block of channels (those of one scale) is worked on by a team of lanes, a power of two of them within one warp;
// each lane has kChannels neighbouring channels at a time, eight (one 16-byte word of bf16) where the addresses allow
// it, else two (one byte of E2M1 codes). What a lane computes does not depend on which, so neither do the bytes.
#include <bit>
#include <cmath>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scales.h"
#include "kernels/cuda/words.h"
#include "kernels/reference/grid.h"

namespace kvstrata::kernels::cuda {
namespace {

using reference::GridOf;
using reference::ScaleByte;
// Of the format; the launch's is cuda::Grid.
using Format = reference::Grid;

// How the lanes of the grid are dealt out: per row first the teams of its blocks, then those of its rope channels,
// filled up so that a row's last team is whole.
struct Teams {
  uint32_t team;        // lanes of a team: 1, 2, 4, ... 32
  uint32_t blocks;      // of a row
  uint32_t rope_teams;  // of a row

  Teams(uint32_t block, uint32_t quantised, uint32_t rope_dims, uint32_t channels) {
    const uint32_t lanes = std::bit_ceil((block + channels - 1) / channels);
    team = lanes < kWarp ? lanes : kWarp;
    blocks = quantised / block;
    rope_teams = (rope_dims + team * channels - 1) / (team * channels);
  }
  KVSTRATA_HOST_DEVICE uint64_t row_lanes() const { return uint64_t{blocks + rope_teams} * team; }
};

// Visits every (row, team) that this thread has a lane in: body(row, team of the row, lane of the team, there). All
// lanes of a warp make the same number of visits, since they exchange; `there` is false for those past the last row.
template <typename Body>
KVSTRATA_DEVICE void ForTeams(const Thread& t, const Teams& teams, uint64_t rows, const Body& body) {
  const uint64_t lanes = rows * teams.row_lanes();
  for (uint64_t begin = t.first() - t.lane(); begin < lanes; begin += t.step()) {
    const uint64_t index = begin + t.lane();
    const Quotient row = Divide(index, teams.row_lanes());
    const uint32_t in_row = static_cast<uint32_t>(row.rest);
    body(row.whole, in_row / teams.team, in_row % teams.team, index < lanes);
  }
}

template <uint32_t kChannels>
KVSTRATA_DEVICE float Largest(const float (&values)[kChannels], float amax) {
  for (uint32_t i = 0; i < kChannels; ++i) {
    const float magnitude = std::fabs(values[i]);
    amax = magnitude > amax ? magnitude : amax;  // false for NaN
  }
  return amax;
}

// amax of a block of `count` channels at `channels`, and the first values that this lane has of it, which most blocks
// have no more of.
template <uint32_t kChannels>
KVSTRATA_DEVICE float BlockLargest(const Thread& t, const Teams& teams, const Rows& rows, uint64_t begin,
                                   uint32_t count, uint32_t lane, bool there, float (&first)[kChannels]) {
  float amax = 0;
  for (uint32_t c = lane * kChannels; there && c < count; c += teams.team * kChannels) {
    float values[kChannels];
    rows.Load(begin + c, values);
    amax = Largest(values, amax);
    if (c == lane * kChannels) {
      for (uint32_t i = 0; i < kChannels; ++i) first[i] = values[i];
    }
  }
  return TeamLargest(t, teams.team, amax);
}

template <uint32_t kChannels>
KVSTRATA_DEVICE void StoreCodes(const Encoder& encode, const float (&values)[kChannels], uint8_t* codes) {
  if (encode.format.e2m1) {
    uint8_t bytes[kChannels / 2];
    for (uint32_t i = 0; i < kChannels / 2; ++i) {
      const uint32_t low = encode(values[2 * i]);
      bytes[i] = static_cast<uint8_t>(low | uint32_t{encode(values[2 * i + 1])} << 4);
    }
    StorePlane<kChannels>(bytes, codes);
  } else {
    uint8_t bytes[kChannels];
    for (uint32_t i = 0; i < kChannels; ++i) bytes[i] = encode(values[i]);
    StorePlane<kChannels>(bytes, codes);
  }
}

template <uint32_t kChannels>
struct Pack {
  static constexpr uint32_t kThreads = 256;

  Format format;
  Teams teams;
  Rows source;
  uint64_t rows;
  uint64_t source_stride;
  uint32_t quantised;
  uint32_t rope_dims;
  uint32_t scale_bytes;
  kvstrata_packed_planes planes;

  KVSTRATA_DEVICE void PackBlock(const Thread& t, uint64_t row, uint32_t block, uint32_t lane, bool there) const {
    const uint64_t begin = row * source_stride + uint64_t{block} * format.block;
    float first[kChannels] = {};
    const float amax = BlockLargest(t, teams, source, begin, format.block, lane, there, first);
    if (!there) return;
    const uint8_t byte = ScaleByte(format, amax);
    const Encoder encode(format, byte);
    if (lane == 0) {
      StoreScale(format, block, teams.blocks, byte, scale_bytes, planes.scales + row * planes.scale_stride_bytes);
    }
    uint8_t* codes = planes.codes + row * planes.code_stride_bytes;
    for (uint32_t c = lane * kChannels; c < format.block; c += teams.team * kChannels) {
      if (c != lane * kChannels) source.Load(begin + c, first);
      const uint32_t channel = block * format.block + c;
      StoreCodes(encode, first, codes + (format.e2m1 ? channel / 2 : channel));
    }
  }

  KVSTRATA_DEVICE void PackRope(uint64_t row, uint32_t team, uint32_t lane) const {
    const uint32_t channel = (team * teams.team + lane) * kChannels;
    if (channel >= rope_dims) return;
    float values[kChannels];
    source.Load(row * source_stride + quantised + channel, values);
    uint8_t bytes[2 * kChannels];
    for (uint32_t i = 0; i < kChannels; ++i) {
      const uint16_t bits = reference::F32ToBf16(values[i]);
      bytes[2 * i] = static_cast<uint8_t>(bits);
      bytes[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
    }
    StorePlane<kChannels>(bytes, planes.rope + row * planes.rope_stride_bytes + 2 * uint64_t{channel});
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    ForTeams(t, teams, rows, [&](uint64_t row, uint32_t team, uint32_t lane, bool there) {
      // The exchange is for all lanes of the warp, those with rope channels too.
      const bool quantises = there && team < teams.blocks;
      PackBlock(t, row, team, lane, quantises);
      if (there && !quantises) PackRope(row, team - teams.blocks, lane);
    });
  }
};

template <uint32_t kChannels>
struct Unpack {
  static constexpr uint32_t kThreads = 256;

  Format format;
  uint64_t rows;
  uint32_t width;
  uint32_t quantised;
  kvstrata_packed_planes planes;
  Rows destination;
  uint64_t destination_stride;

  KVSTRATA_DEVICE void LoadQuantised(uint64_t row, uint32_t channel, float (&values)[kChannels]) const {
    const float scale = LoadScale(format, planes.scales + row * planes.scale_stride_bytes, channel);
    const uint8_t* codes = planes.codes + row * planes.code_stride_bytes;
    if (format.e2m1) {
      uint8_t bytes[kChannels / 2];
      LoadPlane<kChannels>(codes + channel / 2, bytes);
      for (uint32_t i = 0; i < kChannels; ++i) {
        values[i] = DecodeCode(format, static_cast<uint8_t>(bytes[i / 2] >> (i % 2 * 4) & 0xFu), scale);
      }
    } else {
      uint8_t bytes[kChannels];
      LoadPlane<kChannels>(codes + channel, bytes);
      for (uint32_t i = 0; i < kChannels; ++i) values[i] = DecodeCode(format, bytes[i], scale);
    }
  }

  KVSTRATA_DEVICE void LoadRope(uint64_t row, uint32_t channel, float (&values)[kChannels]) const {
    uint8_t bytes[2 * kChannels];
    LoadPlane<kChannels>(planes.rope + row * planes.rope_stride_bytes + 2 * uint64_t{channel}, bytes);
    for (uint32_t i = 0; i < kChannels; ++i) {
      values[i] = reference::Bf16ToF32(static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8));
    }
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    const uint64_t row_pieces = width / kChannels;
    for (uint64_t index = t.first(); index < rows * row_pieces; index += t.step()) {
      const Quotient row = Divide(index, row_pieces);
      const uint32_t channel = static_cast<uint32_t>(row.rest) * kChannels;
      float values[kChannels];
      if (channel < quantised) {
        LoadQuantised(row.whole, channel, values);
      } else {
        LoadRope(row.whole, channel - quantised, values);
      }
      destination.Store(row.whole * destination_stride + channel, values);
    }
  }
};

template <uint32_t kChannels>
struct Quantize {
  static constexpr uint32_t kThreads = 256;

  Format format;
  Teams teams;
  Rows values;
  uint64_t rows;
  uint64_t stride;
  uint32_t quantised;
  uint32_t rope_dims;

  KVSTRATA_DEVICE void QuantizeBlock(const Thread& t, uint64_t row, uint32_t block, uint32_t lane, bool there) const {
    const uint64_t begin = row * stride + uint64_t{block} * format.block;
    float first[kChannels] = {};
    const float amax = BlockLargest(t, teams, values, begin, format.block, lane, there, first);
    const Encoder encode(format, ScaleByte(format, amax));
    for (uint32_t c = lane * kChannels; there && c < format.block; c += teams.team * kChannels) {
      if (c != lane * kChannels) values.Load(begin + c, first);
      for (uint32_t i = 0; i < kChannels; ++i) first[i] = DecodeCode(format, encode(first[i]), encode.scale);
      values.Store(begin + c, first);
    }
  }

  KVSTRATA_DEVICE void RoundRope(uint64_t row, uint32_t team, uint32_t lane) const {
    const uint32_t channel = (team * teams.team + lane) * kChannels;
    if (channel >= rope_dims) return;
    float rope[kChannels];
    values.Load(row * stride + quantised + channel, rope);
    for (uint32_t i = 0; i < kChannels; ++i) rope[i] = reference::RoundBf16(rope[i]);
    values.Store(row * stride + quantised + channel, rope);
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    ForTeams(t, teams, rows, [&](uint64_t row, uint32_t team, uint32_t lane, bool there) {
      const bool quantises = there && team < teams.blocks;
      QuantizeBlock(t, row, team, lane, quantises);
      if (there && !quantises) RoundRope(row, team - teams.blocks, lane);
    });
  }
};

// Eight channels a lane where every address and stride is a multiple of what they take.
bool Wide(uint64_t element_bits, uint64_t byte_bits, const Format& format, uint32_t rope_dims, uint32_t code_word) {
  return element_bits % 16 == 0 && byte_bits % code_word == 0 && format.block % 8 == 0 && rope_dims % 8 == 0;
}

template <uint32_t kChannels>
int32_t LaunchPack(const kvstrata_pack_rows_args& a, const kvstrata_packed_shape& shape, void* stream) {
  const Format format = GridOf(a.format, a.width);
  const uint32_t quantised = a.width - a.rope_dims;
  const Teams teams(format.block, quantised, a.rope_dims, kChannels);
  const Pack<kChannels> kernel{
      format,
      teams,
      {const_cast<void*>(a.source), a.source_type},
      a.rows,
      a.source_stride,
      quantised,
      a.rope_dims,
      shape.scale_bytes,
      {a.codes, a.code_stride_bytes, a.rope, a.rope_stride_bytes, a.scales, a.scale_stride_bytes}};
  return Launch(kernel, Grid::Over(a.rows * teams.row_lanes(), kernel.kThreads), stream);
}

template <uint32_t kChannels>
int32_t LaunchUnpack(const kvstrata_unpack_rows_args& a, void* stream) {
  const Unpack<kChannels> kernel{GridOf(a.format, a.width),
                                 a.rows,
                                 a.width,
                                 a.width - a.rope_dims,
                                 {const_cast<uint8_t*>(a.codes), a.code_stride_bytes, const_cast<uint8_t*>(a.rope),
                                  a.rope_stride_bytes, const_cast<uint8_t*>(a.scales), a.scale_stride_bytes},
                                 {a.destination, a.destination_type},
                                 a.destination_stride};
  return Launch(kernel, Grid::Over(a.rows * (a.width / kChannels), kernel.kThreads), stream);
}

template <uint32_t kChannels>
int32_t LaunchQuantize(const kvstrata_quantize_args& a, void* stream) {
  const Format format = GridOf(a.format, a.width);
  const uint32_t quantised = a.width - a.rope_dims;
  const Teams teams(format.block, quantised, a.rope_dims, kChannels);
  const Quantize<kChannels> kernel{format,    teams,      {a.values, KVSTRATA_KERNELS_F32}, a.rows, a.value_stride,
                                   quantised, a.rope_dims};
  return Launch(kernel, Grid::Over(a.rows * teams.row_lanes(), kernel.kThreads), stream);
}

struct Convert {
  static constexpr uint32_t kThreads = 256;

  Rows source;
  Rows destination;
  uint64_t count;
  uint64_t pieces;  // of eight, that are moved in words; what is left is moved one by one
  bool round;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t i = t.first(); i < pieces; i += t.step()) Move<kWideChannels>(kWideChannels * i);
    for (uint64_t i = kWideChannels * pieces + t.first(); i < count; i += t.step()) Move<1>(i);
  }

  template <uint32_t kChannels>
  KVSTRATA_DEVICE void Move(uint64_t at) const {
    float values[kChannels];
    source.Load(at, values);
    if (round) {
      for (uint32_t i = 0; i < kChannels; ++i) values[i] = reference::RoundBf16(values[i]);
    }
    destination.Store(at, values);
  }
};

int32_t LaunchConvert(const kvstrata_convert_args* args, int32_t from, int32_t to, void* stream) {
  kvstrata_convert_args a;
  const auto bytes = [](int32_t type) { return type == KVSTRATA_KERNELS_F32 ? 4u : 2u; };
  if (const int32_t status = Prepare(args, bytes(from), bytes(to), a); status != kOk) return status;
  const bool wide = (AddressOf(a.source) | AddressOf(a.destination)) % sizeof(Word16) == 0;
  const Convert kernel{{const_cast<void*>(a.source), from},
                       {a.destination, to},
                       a.count,
                       wide ? a.count / kWideChannels : 0,
                       from == to};
  return Launch(kernel, Grid::Over((a.count + kWideChannels - 1) / kWideChannels, kernel.kThreads), stream);
}

// A block has one row, in shared memory where it fits; sums and differences at doubling distance, a barrier after each
// pass.
struct Transform {
  static constexpr uint32_t kThreads = 256;
  // Of 48 KiB; a wider row is transformed where it lies.
  static constexpr uint32_t kWidestShared = 8192;
  static constexpr uint32_t kMostSharedBytes = kWidestShared * sizeof(float);
  static_assert(kMostSharedBytes <= kUnaskedSharedBytes);

  float* values;
  uint64_t rows;
  uint64_t stride;
  uint32_t width;
  float norm;
  bool round;
  bool in_shared;

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    for (uint64_t n = t.block(); n < rows; n += t.blocks()) {
      float* global = values + n * stride;
      float* row = in_shared ? static_cast<float*>(t.shared()) : global;
      for (uint32_t i = t.thread(); i < width; i += t.threads()) row[i] = global[i];
      t.Sync();
      for (uint32_t half = 1; half < width; half *= 2) {
        for (uint32_t pair = t.thread(); pair < width / 2; pair += t.threads()) {
          const uint32_t i = pair / half * 2 * half + pair % half;
          const float a = row[i];
          const float b = row[i + half];
          row[i] = a + b;
          row[i + half] = a - b;
        }
        t.Sync();
      }
      for (uint32_t i = t.thread(); i < width; i += t.threads()) {
        const float scaled = row[i] * norm;
        global[i] = round ? reference::RoundBf16(scaled) : scaled;
      }
      t.Sync();  // the next row's values come where these are read
    }
  }
};

}  // namespace

int32_t PackRows(const kvstrata_pack_rows_args* args, void* stream) {
  kvstrata_pack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  kvstrata_packed_shape asked{};
  asked.struct_size = sizeof asked;
  asked.format = a.format;
  asked.width = a.width;
  asked.rope_dims = a.rope_dims;
  kvstrata_packed_shape shape;
  if (const int32_t status = Prepare(&asked, shape); status != kOk) return status;
  const Format format = GridOf(a.format, a.width);
  const uint64_t element = a.source_type == KVSTRATA_KERNELS_F32 ? 4 : 2;
  const uint64_t rope_bits = a.rope_dims == 0 ? 0 : (AddressOf(a.rope) | a.rope_stride_bytes);
  const uint64_t code_bits = AddressOf(a.codes) | a.code_stride_bytes;
  const bool wide = Wide(AddressOf(a.source) | a.source_stride * element | rope_bits, code_bits, format, a.rope_dims,
                         format.e2m1 ? 4 : 8);
  return wide ? LaunchPack<kWideChannels>(a, shape, stream) : LaunchPack<2>(a, shape, stream);
}

int32_t UnpackRows(const kvstrata_unpack_rows_args* args, void* stream) {
  kvstrata_unpack_rows_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const Format format = GridOf(a.format, a.width);
  const uint64_t element = a.destination_type == KVSTRATA_KERNELS_F32 ? 4 : 2;
  const uint64_t rope_bits = a.rope_dims == 0 ? 0 : (AddressOf(a.rope) | a.rope_stride_bytes);
  const uint64_t code_bits = AddressOf(a.codes) | a.code_stride_bytes;
  const bool wide = Wide(AddressOf(a.destination) | a.destination_stride * element | rope_bits, code_bits, format,
                         a.rope_dims, format.e2m1 ? 4 : 8);
  return wide ? LaunchUnpack<kWideChannels>(a, stream) : LaunchUnpack<2>(a, stream);
}

int32_t QuantizeDequantize(const kvstrata_quantize_args* args, void* stream) {
  kvstrata_quantize_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const bool wide = Wide(AddressOf(a.values) | a.value_stride * 4, 0, GridOf(a.format, a.width), a.rope_dims, 8);
  return wide ? LaunchQuantize<kWideChannels>(a, stream) : LaunchQuantize<2>(a, stream);
}

int32_t ConvertF32ToBf16(const kvstrata_convert_args* args, void* stream) {
  return LaunchConvert(args, KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16, stream);
}

int32_t ConvertBf16ToF32(const kvstrata_convert_args* args, void* stream) {
  return LaunchConvert(args, KVSTRATA_KERNELS_BF16, KVSTRATA_KERNELS_F32, stream);
}

int32_t ConvertRoundBf16(const kvstrata_convert_args* args, void* stream) {
  return LaunchConvert(args, KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_F32, stream);
}

int32_t Hadamard(const kvstrata_hadamard_args* args, void* stream) {
  kvstrata_hadamard_args a;
  if (const int32_t status = Prepare(args, a); status != kOk) return status;
  const bool in_shared = a.width <= Transform::kWidestShared;
  const Transform kernel{a.values,
                         a.rows,
                         a.value_stride,
                         a.width,
                         static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.width))),
                         a.profile != KVSTRATA_KERNELS_PROFILE_F,
                         in_shared};
  const uint32_t shared_bytes = in_shared ? a.width * static_cast<uint32_t>(sizeof(float)) : 0;
  return Launch(kernel, Grid::Over(a.rows * kernel.kThreads, kernel.kThreads, shared_bytes), stream);
}

}  // namespace kvstrata::kernels::cuda
