// SPDX-License-Identifier: Apache-2.0
// Restores into device memory: the rows of 65,536 tokens of DeepSeek-V4-Flash (230 MB) from the tier of memory against
// one copy of as many bytes out of pinned memory, and from the drive against the bare drive, which reads as many bytes
// into huge pages. Rows lie in planar pages of 64, in any order; every byte is compared.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "benchmarks/cuda/gpu.h"
#include "benchmarks/ratio.h"
#include "benchmarks/storage/drive.h"
#include "kvstrata/kvstrata.hpp"

namespace kvstrata::benchmarks {
namespace {

constexpr uint64_t kTokens = 65'536;
constexpr uint32_t kPageRows = 64;
constexpr uint32_t kMainRowBytes = 584;
constexpr uint32_t kScaleBytes = 8;

template <typename T>
T Must(result<T> outcome) {
  if (!outcome) FailGpu(outcome.error().c_str());
  if constexpr (!std::is_void_v<T>) return std::move(outcome).value();
}

// The rows of one stream: two pools of pages with the same table, one that is stored and one that is restored.
struct Rows {
  uint32_t stream, row_bytes;
  std::vector<int32_t> table;
  DeviceMemory computed, restored;

  uint64_t bytes() const { return uint64_t{kPageRows} * row_bytes * table.size(); }

  buffer Describe(const DeviceMemory& pool) const {
    const uint32_t scales = row_bytes == kMainRowBytes ? kScaleBytes : 0;
    const uint32_t codes = row_bytes - scales;
    buffer out = buffer::pages(stream, mutable_byte_view(static_cast<unsigned char*>(pool.get()), bytes()), kPageRows,
                               uint64_t{kPageRows} * row_bytes, table.data(), table.size());
    out.column(codes, 0, codes);
    if (scales != 0) out.column(scales, uint64_t{kPageRows} * codes, scales);
    return out.on_device(0);
  }
};

class World {
 public:
  explicit World(uint64_t memory_bytes) : layout_(Must(layout::from_preset("deepseek-v4-flash"))) {
    kvstrata_device device{};
    device.struct_size = sizeof device;
    Ok(kvstrata_cuda_device(0, nullptr, &device, nullptr), "kvstrata_cuda_device");
    cache_options options;
    options.path = folder_.path() + "/store";
    options.capacity_bytes = 1u << 30;
    options.memory_bytes = memory_bytes;
    options.device = &device;
    cache_ = Must(cache::open(options));
    identity names;
    for (const char* field : {"model.weights", "model.quantization", "rope", "packing", "adapter",
                              "engine.state_version", "kernel.numerics", "tenant"}) {
      names.set(field, "x");
    }
    space_ = Must(cache_.open_namespace(layout_, names));
    prompt_.resize(kTokens + 1);
    std::iota(prompt_.begin(), prompt_.end(), 0);
    Compute();
    Store();
  }

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Rows& rows : rows_) sum += rows.bytes();
    return sum;
  }
  const std::string& folder() const { return folder_.path(); }

  double Restore() {
    std::vector<buffer> destinations;
    for (const Rows& rows : rows_) destinations.push_back(rows.Describe(rows.restored));
    return SecondsOf([&] {
      lookup_options lookup;
      lookup.allowed_modes = mode_bit(resume_mode::full_replay);
      match found = Must(space_.lookup(prompt_, lookup));
      restore_plan plan = Must(found.plan());
      Must(plan.start(destinations));
      if (Must(plan.wait()).usable_tokens != kTokens) FailGpu("a restore did not bring everything");
      Wait();
    });
  }

  void Check() const {
    for (const Rows& rows : rows_) {
      if (Download<uint8_t>(rows.restored.get(), rows.bytes()) !=
          Download<uint8_t>(rows.computed.get(), rows.bytes())) {
        FailGpu("a row is not what was stored");
      }
    }
  }

 private:
  void Compute() {
    std::mt19937_64 random(1);
    const uint32_t count = Must(layout_.info()).stream_count;
    for (uint32_t stream = 0; stream < count; ++stream) {
      const stream_info info = Must(layout_.stream(stream));
      if (info.kind != KVSTRATA_STREAM_ROWS) continue;
      Rows rows{stream, info.row_bytes, std::vector<int32_t>(kTokens / info.ratio / kPageRows), {}, {}};
      std::iota(rows.table.begin(), rows.table.end(), 0);
      std::shuffle(rows.table.begin(), rows.table.end(), random);
      std::vector<uint64_t> words(rows.bytes() / sizeof(uint64_t));
      for (uint64_t& word : words) word = random();
      rows.computed = Upload(words);
      rows.restored = Upload(std::vector<uint64_t>(words.size()));
      rows_.push_back(std::move(rows));
    }
  }

  void Store() {
    writer_options options;
    options.no_snapshots = true;
    options.wait_ms = 60'000;
    writer out = Must(space_.open_writer(nullptr, options));
    std::vector<buffer> sources;
    for (const Rows& rows : rows_) sources.push_back(rows.Describe(rows.computed));
    Must(out.set_sources(sources));
    constexpr uint64_t kStep = 8192;
    for (uint64_t at = 0; at < kTokens; at += kStep) {
      Must(out.advance(token_view(prompt_).first(at + kStep).subview(at), at + kStep));
    }
    commit_options end;
    end.durable = true;
    end.timeout_ms = 60'000;
    Must(out.commit(end));
  }

  Folder folder_;
  layout layout_;
  std::vector<int32_t> prompt_;
  std::vector<Rows> rows_;
  cache cache_;
  name_space space_;
};

void MeasureTier() {
  World world(1u << 30);
  void* pinned = nullptr;
  if (cudaMallocHost(&pinned, world.bytes()) != cudaSuccess) FailGpu("no pinned memory");
  const DeviceMemory to = Allocate(world.bytes());
  const auto copy = [&] { return SecondsOf([&] { ToDevice(to.get(), pinned, world.bytes()); }); };
  world.Restore();
  copy();
  PrintTimedPairs(
      "cuda_restore_from_memory_of_pinned_copy", ">=0.9", kPairs, [&] { return world.Restore(); }, copy, true);
  world.Check();
  cudaFreeHost(pinned);
}

void MeasureDrive() {
  World world(0);
  constexpr uint64_t kRecordBytes = 1u << 20;
  RawFile raw(world.folder() + "/raw", world.bytes() / kRecordBytes, kRecordBytes);
  raw.Write();
  const double scale =
      static_cast<double>(world.bytes()) / static_cast<double>(world.bytes() / kRecordBytes * kRecordBytes);
  world.Restore();
  raw.Read();
  PrintTimedPairs(
      "cuda_restore_from_drive_of_bare_drive", ">=0.9", kPairs, [&] { return world.Restore(); },
      [&] { return scale * SecondsOf([&] { raw.Read(); }); }, true);
  world.Check();
}

}  // namespace
}  // namespace kvstrata::benchmarks

int main() {
  kvstrata::benchmarks::NeedDevice();
  kvstrata::benchmarks::MeasureTier();
  kvstrata::benchmarks::MeasureDrive();
}
