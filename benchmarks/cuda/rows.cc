// SPDX-License-Identifier: Apache-2.0
// Movement and packing on a GPU against a copy on the device that moves as many bytes: rows of 584 bytes between a
// block and planar pages, and between their packed form and bf16.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "benchmarks/cuda/gpu.h"

namespace kvstrata::benchmarks {
namespace {

constexpr uint64_t kRows = 1u << 19;
constexpr uint64_t kCodeBytes = 576;  // and RoPE
constexpr uint64_t kScaleBytes = 8;
constexpr uint64_t kRowBytes = kCodeBytes + kScaleBytes;
constexpr uint64_t kPageRows = 64;
constexpr uint64_t kWidth = 512;
constexpr uint64_t kNope = 448;

const kvstrata_kernels* gpu = nullptr;
const kvstrata_kernels* cpu = nullptr;

std::vector<uint8_t> RandomBytes(uint64_t count) {
  std::mt19937_64 random(1);
  std::vector<uint8_t> bytes(count);
  for (uint64_t i = 0; i + 8 <= count; i += 8) {
    const uint64_t value = random();
    std::memcpy(&bytes[i], &value, 8);
  }
  return bytes;
}

void MeasureMovement() {
  constexpr kvstrata_segment kSegments[2] = {{0, 0, kCodeBytes, kCodeBytes},
                                             {kCodeBytes, kPageRows * kCodeBytes, kScaleBytes, kScaleBytes}};
  const std::vector<uint8_t> rows = RandomBytes(kRows * kRowBytes);
  std::vector<int32_t> ids(kRows / kPageRows);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(2));
  const DeviceMemory block = Upload(rows);
  const DeviceMemory pages = Allocate(rows.size());
  const DeviceMemory table = Upload(ids);

  auto args = Args<kvstrata_move_args>();
  args.page_id_type = KVSTRATA_KERNELS_INT32;
  args.rows = kRows;
  args.rows_per_page = kPageRows;
  args.page_ids = table.get();
  args.page_id_count = ids.size();
  args.page_limit = ids.size();
  args.pages = pages.get();
  args.page_stride_bytes = kPageRows * kRowBytes;
  args.block = block.get();
  args.block_stride_bytes = kRowBytes;
  args.segments = kSegments;
  args.segment_count = 2;
  const auto scatter = [&] { Ok(gpu->scatter_rows(&args, nullptr), "scatter_rows"); };
  const auto gather = [&] { Ok(gpu->gather_rows(&args, nullptr), "gather_rows"); };
  const DeviceMemory elsewhere = Allocate(rows.size());
  const auto copy = [&] { CopyPass(elsewhere.get(), block.get(), rows.size()); };

  PrintDevicePairs("cuda_scatter_of_device_copy", ">=0.85", scatter, copy, true);
  std::vector<uint8_t> want(rows.size());
  kvstrata_move_args on_host = args;
  on_host.page_ids = ids.data();
  on_host.pages = want.data();
  on_host.block = const_cast<uint8_t*>(rows.data());
  Ok(cpu->scatter_rows(&on_host, nullptr), "scatter_rows on the CPU");
  if (Download<uint8_t>(pages.get(), rows.size()) != want) FailGpu("scattered rows are not where they should be");

  PrintDevicePairs("cuda_gather_of_device_copy", ">=0.85", gather, copy, true);
  if (Download<uint8_t>(block.get(), rows.size()) != rows) FailGpu("gathered rows are not what was scattered");
}

// Planar packed rows, codes and RoPE together, then the scales.
struct Planes {
  explicit Planes(uint8_t* base, uint64_t rows) : codes(base), rope(base + kNope), scales(base + rows * kCodeBytes) {}
  uint8_t *codes, *rope, *scales;
};

kvstrata_pack_rows_args PackArgs(const void* source, const Planes& planes, uint64_t rows) {
  auto args = Args<kvstrata_pack_rows_args>();
  args.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  args.source_type = KVSTRATA_KERNELS_BF16;
  args.rows = rows;
  args.source = source;
  args.codes = planes.codes;
  args.code_stride_bytes = kCodeBytes;
  args.rope = planes.rope;
  args.rope_stride_bytes = kCodeBytes;
  args.scales = planes.scales;
  args.scale_stride_bytes = kScaleBytes;
  return args;
}

kvstrata_unpack_rows_args UnpackArgs(const Planes& planes, void* destination, uint64_t rows) {
  auto args = Args<kvstrata_unpack_rows_args>();
  args.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  args.destination_type = KVSTRATA_KERNELS_BF16;
  args.rows = rows;
  args.codes = planes.codes;
  args.code_stride_bytes = kCodeBytes;
  args.rope = planes.rope;
  args.rope_stride_bytes = kCodeBytes;
  args.scales = planes.scales;
  args.scale_stride_bytes = kScaleBytes;
  args.destination = destination;
  return args;
}

// The floats of bf16 numbers near 1, of either sign.
std::vector<uint16_t> Bf16Rows(uint64_t rows) {
  std::mt19937 random(3);
  std::vector<uint16_t> values(rows * kWidth);
  for (uint16_t& value : values) value = static_cast<uint16_t>((random() & 0x80FFu) | 0x3F00u);
  return values;
}

void MeasureFormats() {
  const std::vector<uint16_t> source = Bf16Rows(kRows);
  const DeviceMemory floats = Upload(source);
  const DeviceMemory packed = Allocate(kRows * kRowBytes);
  const Planes planes(static_cast<uint8_t*>(packed.get()), kRows);
  const DeviceMemory unpacked = Allocate(source.size() * 2);
  const kvstrata_pack_rows_args pack = PackArgs(floats.get(), planes, kRows);
  const kvstrata_unpack_rows_args unpack = UnpackArgs(planes, unpacked.get(), kRows);
  // A copy reads and writes half of these bytes each.
  const uint64_t moved = kRows * (kRowBytes + 2 * kWidth);
  const DeviceMemory from = Allocate(moved / 2);
  const DeviceMemory to = Allocate(moved / 2);
  const auto copy = [&] { CopyPass(to.get(), from.get(), moved / 2); };
  PrintDevicePairs(
      "cuda_pack_of_device_copy", ">=0.85", [&] { Ok(gpu->pack_rows(&pack, nullptr), "pack_rows"); }, copy, true);
  PrintDevicePairs(
      "cuda_unpack_of_device_copy", ">=0.85", [&] { Ok(gpu->unpack_rows(&unpack, nullptr), "unpack_rows"); }, copy,
      true);

  std::vector<uint8_t> want(kRows * kRowBytes);
  const Planes host(want.data(), kRows);
  const kvstrata_pack_rows_args pack_host = PackArgs(source.data(), host, kRows);
  Ok(cpu->pack_rows(&pack_host, nullptr), "pack_rows on the CPU");
  if (Download<uint8_t>(packed.get(), want.size()) != want) FailGpu("packed rows differ from the CPU's");
  std::vector<uint16_t> floats_wanted(source.size());
  const kvstrata_unpack_rows_args unpack_host = UnpackArgs(host, floats_wanted.data(), kRows);
  Ok(cpu->unpack_rows(&unpack_host, nullptr), "unpack_rows on the CPU");
  if (Download<uint16_t>(unpacked.get(), source.size()) != floats_wanted) FailGpu("unpacked rows differ");
}

void Run() {
  NeedDevice();
  Ok(kvstrata_cuda_kernels(0, &gpu, nullptr), "kvstrata_cuda_kernels");
  cpu = kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_AUTO);
  MeasureMovement();
  MeasureFormats();
}

}  // namespace
}  // namespace kvstrata::benchmarks

int main() { kvstrata::benchmarks::Run(); }
