// SPDX-License-Identifier: Apache-2.0
// Packing, unpacking, quantising, converting and transforming rows: from memory, against the memory passes that move
// the same bytes, and against the scalar reference. Every output is compared with the reference's, byte for byte,
// before anything is measured.
//
// Quantising reads a row of 1024 bytes and writes 584; its roofline is the read pass over 1608 bytes. Dequantising
// does the opposite; its roofline is the memcpy that reads and writes 804 bytes each.
//
// Thread rule: one thread.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

using namespace kvstrata::benchmarks;
using kvstrata::kernels::Get;

constexpr uint64_t kWidth = 512;
constexpr uint64_t kRowBytes = 584;
// 134 MB of bf16 rows and 77 MB of packed ones: beyond any cache.
constexpr uint64_t kRows = 131072;
// 2 MB of float rows: what the reference is timed on, and few enough to stay in the second cache.
constexpr uint64_t kFewRows = 1024;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "formats benchmark: %s\n", what);
  std::exit(1);
}

void Require(bool holds, const char* what) {
  if (!holds) Fail(what);
}

// Sums of four uniform numbers: bell-shaped, so that magnitudes spread over several binades as those of latents do.
void FillRows(uint16_t* halves, float* floats, uint64_t count) {
  uint64_t state = 7;
  for (uint64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int term = 0; term < 4; ++term) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    }
    halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) >> 16);
    if (i < kFewRows * kWidth) floats[i] = std::bit_cast<float>(uint32_t{halves[i]} << 16);
  }
}

struct World {
  HugeBuffer halves{kRows * kWidth * 2};
  HugeBuffer floats{kFewRows * kWidth * 4};
  HugeBuffer work{kFewRows * kWidth * 4};
  HugeBuffer packed{kRows * kRowBytes};
  HugeBuffer back{kRows * kWidth * 2};
  HugeBuffer any{kRows * (kWidth * 2 + kRowBytes)};  // what the passes run over

  World() { FillRows(halves.as<uint16_t>(), floats.as<float>(), kRows * kWidth); }
};

// Interleaved rows of 584 bytes. The other formats use a part of each.
kvstrata_pack_rows_args PackArgs(const World& w, int32_t format, int32_t type, uint64_t rows) {
  kvstrata_pack_rows_args a{};
  a.struct_size = sizeof a;
  a.format = format;
  a.width = kWidth;
  a.rope_dims = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? 64 : 0;
  a.source_type = type;
  a.rows = rows;
  a.source = type == KVSTRATA_KERNELS_F32 ? w.floats.as<void>() : w.halves.as<void>();
  a.codes = w.packed.as();
  a.rope = a.codes + 448;
  a.scales = a.codes + 576;
  if (format == KVSTRATA_KERNELS_FORMAT_V41_WINDOW || format == KVSTRATA_KERNELS_FORMAT_V41_ENTRY) {
    a.scales = a.codes + 512;
  }
  a.code_stride_bytes = a.rope_stride_bytes = a.scale_stride_bytes = kRowBytes;
  return a;
}

kvstrata_unpack_rows_args UnpackArgs(const World& w, int32_t format, int32_t type, uint64_t rows) {
  const kvstrata_pack_rows_args pack = PackArgs(w, format, type, rows);
  kvstrata_unpack_rows_args a{};
  a.struct_size = sizeof a;
  a.format = format;
  a.width = pack.width;
  a.rope_dims = pack.rope_dims;
  a.destination_type = type;
  a.rows = rows;
  a.codes = pack.codes;
  a.rope = pack.rope;
  a.scales = pack.scales;
  a.code_stride_bytes = a.rope_stride_bytes = a.scale_stride_bytes = kRowBytes;
  a.destination = w.back.as<void>();
  return a;
}

template <typename Function, typename A>
void Call(Function function, const A& args) {
  Require(function(&args, nullptr) == 0, "a call failed");
}

// Runs the call on both tables and compares `bytes` bytes of what it wrote.
template <typename Function, typename A>
void Check(Function kernel, Function reference, const A& args, const HugeBuffer& out, size_t bytes) {
  std::memset(out.as(), 0x55, bytes);
  Call(reference, args);
  const std::vector<uint8_t> expected(out.as(), out.as() + bytes);
  std::memset(out.as(), 0x55, bytes);
  Call(kernel, args);
  Require(std::memcmp(out.as(), expected.data(), bytes) == 0, "the result is not the reference's");
}

void FromMemory(const World& w, const kvstrata_kernels& k, const kvstrata_kernels& r) {
  const auto pack = PackArgs(w, KVSTRATA_KERNELS_FORMAT_V4_ROW, KVSTRATA_KERNELS_BF16, kRows);
  Check(k.pack_rows, r.pack_rows, pack, w.packed, kRows * kRowBytes);
  PrintShare(
      "pack_rows_v4_bf16_of_read_pass", ">=0.85", [&] { Call(k.pack_rows, pack); },
      [&] { ReadPass(w.any.as(), kRows * (2 * kWidth + kRowBytes)); });
  PrintShare(
      "pack_rows_v4_bf16_of_read_and_write_pass", ">=0.85", [&] { Call(k.pack_rows, pack); },
      [&] { ReadWritePass(w.halves.as(), kRows * 2 * kWidth, w.any.as(), kRows * kRowBytes); });
  const auto unpack = UnpackArgs(w, KVSTRATA_KERNELS_FORMAT_V4_ROW, KVSTRATA_KERNELS_BF16, kRows);
  Check(k.unpack_rows, r.unpack_rows, unpack, w.back, kRows * kWidth * 2);
  PrintShare(
      "unpack_rows_v4_bf16_of_memcpy", ">=0.85", [&] { Call(k.unpack_rows, unpack); },
      [&] { CopyPass(w.any.as(), w.any.as() + w.any.bytes() / 2, kRows * (2 * kWidth + kRowBytes) / 2); });
}

void AgainstReference(const World& w, const kvstrata_kernels& k, const kvstrata_kernels& r, const char* goal) {
  const auto name = [&](const char* what) { return std::string(what) + "_" + k.name + "_vs_reference"; };
  struct Case {
    int32_t format;
    const char* text;
  };
  constexpr Case kCases[] = {{KVSTRATA_KERNELS_FORMAT_V4_ROW, "v4_row"},
                             {KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, "v4_index_fp4"},
                             {KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, "v4_index_fp8"},
                             {KVSTRATA_KERNELS_FORMAT_V41_WINDOW, "v41_window"},
                             {KVSTRATA_KERNELS_FORMAT_V41_ENTRY, "v41_entry"}};
  for (const int32_t type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
    const std::string suffix = type == KVSTRATA_KERNELS_F32 ? "_f32" : "_bf16";
    for (const Case& c : kCases) {
      const auto pack = PackArgs(w, c.format, type, kFewRows);
      Check(k.pack_rows, r.pack_rows, pack, w.packed, kFewRows * kRowBytes);
      PrintShare(
          name(("pack_rows_" + std::string(c.text) + suffix).c_str()).c_str(), goal, [&] { Call(k.pack_rows, pack); },
          [&] { Call(r.pack_rows, pack); });
      const auto unpack = UnpackArgs(w, c.format, type, kFewRows);
      Check(k.unpack_rows, r.unpack_rows, unpack, w.back, kFewRows * kWidth * 2);
      PrintShare(
          name(("unpack_rows_" + std::string(c.text) + suffix).c_str()).c_str(), goal,
          [&] { Call(k.unpack_rows, unpack); }, [&] { Call(r.unpack_rows, unpack); });
    }
  }
}

void InPlace(const World& w, const kvstrata_kernels& k, const kvstrata_kernels& r) {
  const size_t bytes = kFewRows * kWidth * 4;
  kvstrata_quantize_args quantize{};
  quantize.struct_size = sizeof quantize;
  quantize.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  quantize.rows = kFewRows;
  quantize.values = w.work.as<float>();
  kvstrata_hadamard_args hadamard{};
  hadamard.struct_size = sizeof hadamard;
  hadamard.profile = KVSTRATA_KERNELS_PROFILE_Q;
  hadamard.width = 128;
  hadamard.rows = kFewRows * kWidth / 128;
  hadamard.values = w.work.as<float>();
  const auto both = [&](const char* name, const auto& args, auto kernel, auto reference) {
    const auto fresh = [&](auto function) {
      std::memcpy(w.work.as(), w.floats.as(), bytes);
      Call(function, args);
    };
    fresh(reference);
    const std::vector<uint8_t> expected(w.work.as(), w.work.as() + bytes);
    fresh(kernel);
    Require(std::memcmp(w.work.as(), expected.data(), bytes) == 0, "the result is not the reference's");
    PrintShare((std::string(name) + "_" + k.name + "_vs_reference").c_str(), ">=5.0", [&] { fresh(kernel); },
               [&] { fresh(reference); });
  };
  both("quantize_dequantize_v4_row", quantize, k.quantize_dequantize, r.quantize_dequantize);
  both("hadamard_128", hadamard, k.hadamard, r.hadamard);
}

// The compiler turns the reference's conversions into vector code of the baseline, and from memory nothing is faster
// than the bus: the goal is the copy of the same bytes.
void Conversions(const World& w, const kvstrata_kernels& k, const kvstrata_kernels& r) {
  kvstrata_convert_args a{};
  a.struct_size = sizeof a;
  a.count = kRows * kWidth / 2;
  a.source = w.halves.as<void>();
  a.destination = w.any.as<void>();
  const auto copy = [&] { CopyPass(w.any.as(), w.any.as() + w.any.bytes() / 2, a.count * 3); };
  Check(k.bf16_to_f32, r.bf16_to_f32, a, w.any, a.count * 4);
  PrintShare(
      "bf16_to_f32_of_memcpy", ">=0.85", [&] { Call(k.bf16_to_f32, a); }, copy);
  std::memcpy(w.back.as(), w.any.as(), a.count * 4);
  a.source = w.back.as<void>();
  Check(k.f32_to_bf16, r.f32_to_bf16, a, w.any, a.count * 2);
  PrintShare(
      "f32_to_bf16_of_memcpy", ">=0.85", [&] { Call(k.f32_to_bf16, a); }, copy);
  a.count /= 2;
  Check(k.bf16_round, r.bf16_round, a, w.any, a.count * 4);
  PrintShare(
      "bf16_round_of_memcpy", ">=0.85", [&] { Call(k.bf16_round, a); },
      [&] { CopyPass(w.any.as(), w.any.as() + w.any.bytes() / 2, a.count * 4); });
}

}  // namespace

int main() {
  const World world;
  const kvstrata_kernels& reference = *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  const kvstrata_kernels* best = Get(KVSTRATA_KERNELS_LEVEL_CPU);
  if (best == nullptr) Fail("this machine has no cpu level");
  std::printf("level %s\n", best->name);
  FromMemory(world, *best, reference);
  Conversions(world, *best, reference);
  AgainstReference(world, *best, reference, ">=5.0");
  InPlace(world, *best, reference);
  if (const kvstrata_kernels* avx2 = Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX2); avx2 != nullptr && avx2 != best) {
    AgainstReference(world, *avx2, reference, ">=6.0");
    InPlace(world, *avx2, reference);
  }
  return 0;
}
