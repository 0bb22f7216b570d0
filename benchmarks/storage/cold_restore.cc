// SPDX-License-Identifier: Apache-2.0
// The main job against the bare drive: the rows of 65,536 tokens of DeepSeek-V4-Flash (230 MB), written as an engine
// computes them (8,192 tokens a step), are looked up, read, proven and put where an engine wants them, layer by layer,
// while the reference reads as many bytes into 2 MiB pages and does nothing else. Both read past the page cache. What
// one thread reaches that reads as many, takes their checksums and moves them is the most that a restore could. Once
// each stream's rows go to one place, once to pages of 64 rows in any order, each with its rows' values first and their
// scales behind, as engines' kernels want them.
//
// Then the other way: as many rows again and again, each time of another prompt, through a writer until its commit says
// that they are durable, while the reference writes and flushes as many bytes. The budget is full by then, so that both
// write into space that was written before.
//
// Rows alone: the restart is by full replay, so that no snapshot is read. The C API adds nothing to a restore but
// checks of its arguments, so this uses the engine beneath it, beside the drive that it is measured against.
//
//   cold_restore_benchmark [TOKENS A STEP]     128: blocks that come one by one, as while decoding; else 8,192
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "benchmarks/ratio.h"
#include "benchmarks/storage/drive.h"
#include "benchmarks/storage/proven_and_moved.h"
#include "lib/engine/cache.h"
#include "lib/engine/restore.h"
#include "lib/engine/writer.h"
#include "lib/layout/identity.h"
#include "lib/layout/presets.h"
#include "lib/storage/segment/segment_storage.h"

namespace {

namespace engine = kvstrata::core::engine;
namespace layout = kvstrata::core::layout;
namespace plan = kvstrata::core::plan;
namespace storage = kvstrata::core::storage;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::Folder;
using kvstrata::benchmarks::HugePages;
using kvstrata::benchmarks::kPairs;
using kvstrata::benchmarks::PrintShare;
using kvstrata::benchmarks::ProvenAndMoved;
using kvstrata::benchmarks::RawFile;
using kvstrata::benchmarks::SecondsOf;

constexpr uint64_t kTokens = 65'536;
constexpr uint64_t kMiB = 1u << 20;
constexpr uint32_t kPageRows = 64;

// One rows stream in the engine's memory: what it computed, and where it wants it back.
struct Rows {
  uint32_t stream = 0;
  std::byte* computed = nullptr;
  std::byte* restored = nullptr;
  uint64_t bytes = 0;
  uint32_t row_bytes = 0;
  uint32_t scale_bytes = 0;  // the last of each row
  std::vector<int64_t> pages;

  uint32_t value_bytes() const { return row_bytes - scale_bytes; }
};

enum class Way { kWhole, kEarlyRelease, kPages };

class World {
 public:
  explicit World(uint64_t step) : layout_(layout::Preset("deepseek-v4-flash").value()) {
    engine::CacheOptions options;
    options.capacity_bytes = uint64_t{4} << 30;
    storage::SegmentOptions segments;
    segments.path = folder_.path() + "/store";
    segments.capacity_bytes = options.capacity_bytes;
    auto store = storage::SegmentStorage::Open(segments);
    if (!store.ok()) Fail("the store cannot be opened");
    options.storage = *std::move(store);
    cache_ = engine::Cache::Open(options).value();
    std::vector<layout::Field> fields;
    for (const std::string_view name : layout::MandatoryNames(layout_)) fields.push_back({std::string(name), "x"});
    bool existed = false;
    space_ =
        cache_->OpenNamespace(layout::Identity::Create(std::move(fields)).value(), layout_, false, &existed).value();
    tokens_.resize(kTokens + 1);
    Compute();
    Store(step);
    const double stored = static_cast<double>(cache_->stats().held_row_bytes);
    std::printf("ratio record_bytes_vs_rows %.4f goal <=1.01\n", stored / static_cast<double>(row_bytes()));
  }
  ~World() { cache_->Close(std::chrono::seconds(60), nullptr).IgnoreError(); }

  uint64_t row_bytes() const {
    uint64_t bytes = 0;
    for (const Rows& rows : rows_) bytes += rows.bytes;
    return bytes;
  }
  const std::string& folder() const { return folder_.path(); }

  // Seconds until the first layer that has rows was complete, and until all were.
  std::pair<double, double> Restore(Way way) {
    const bool early_release = way == Way::kEarlyRelease;
    engine::Prompt prompt;
    if (!prompt.Append(tokens_, {}).ok()) Fail("the prompt");
    double first = 0;
    const double all = SecondsOf([&] {
      engine::LookupOptions lookup;
      lookup.allowed_modes = plan::ModeBit(plan::Mode::kFullReplay);
      const auto match = engine::Match::Lookup(cache_, space_, std::move(prompt), lookup).value();
      engine::RestoreOptions options;
      options.early_release = early_release;
      for (const Rows& rows : rows_) options.streams.push_back(rows.stream);
      const auto restore = engine::RestorePlan::Create(*match, options).value();
      std::vector<engine::BufferDesc> destinations;
      for (const Rows& rows : rows_)
        destinations.push_back(way == Way::kPages ? Pages(rows) : Buffer(rows, rows.restored));
      engine::RestoreResult result;
      first = SecondsOf([&] {
        if (!restore->Start(std::move(destinations)).ok()) Fail("a restore was refused");
        if (early_release && !restore->WaitLayers(1, 60'000, nullptr).ok()) Fail("no layer came");
      });
      if (!restore->Wait(60'000, &result).ok() || result.state != engine::RestoreState::kComplete ||
          result.plan.usable_tokens != kTokens) {
        Fail("a restore did not bring everything");
      }
    });
    return {first, all};
  }

  void Check() {
    for (const Rows& rows : rows_) {
      if (std::memcmp(rows.restored, rows.computed, rows.bytes) != 0) Fail("a row is not what was stored");
      std::memset(rows.restored, 0, rows.bytes);
    }
  }

  void CheckPages() {
    for (const Rows& rows : rows_) {
      const uint64_t page_bytes = uint64_t{kPageRows} * rows.row_bytes;
      for (uint64_t row = 0; row < rows.bytes / rows.row_bytes; ++row) {
        const std::byte* const computed = rows.computed + row * rows.row_bytes;
        const std::byte* const page = rows.restored + rows.pages[row / kPageRows] * page_bytes;
        const std::byte* const scales = page + kPageRows * rows.value_bytes();
        const uint64_t slot = row % kPageRows;
        if (std::memcmp(page + slot * rows.value_bytes(), computed, rows.value_bytes()) != 0 ||
            std::memcmp(scales + slot * rows.scale_bytes, computed + rows.value_bytes(), rows.scale_bytes) != 0) {
          Fail("a row in a page is not what was stored");
        }
      }
      std::memset(rows.restored, 0, rows.bytes);
    }
  }

  // Of a prompt that was not there before, durably.
  void Store(uint64_t step) {
    std::iota(tokens_.begin(), tokens_.end(), first_token_ += 1);
    engine::WriterOptions options;
    options.wait_ms = 60'000;
    const auto writer =
        engine::Writer::Open(cache_, space_, plan::SnapshotPolicy::Zero(), nullptr, nullptr, options).value();
    for (const Rows& rows : rows_) {
      if (!writer->SetSource(Buffer(rows, rows.computed)).ok()) Fail("a source was refused");
    }
    for (uint64_t at = 0; at < kTokens; at += step) {
      const uint64_t count = std::min(step, kTokens - at);
      if (!writer->Advance(std::span(tokens_).subspan(at, count), {}, at + count).ok()) Fail("advance");
    }
    engine::CommitInfo info;
    if (!writer->Commit(/*durable=*/true, false, 60'000, &info).ok() ||
        info.progress.blocks_stored != kTokens / layout_.block_tokens()) {
      Fail("not everything was stored");
    }
  }

 private:
  static engine::BufferDesc Buffer(const Rows& rows, std::byte* memory) {
    engine::BufferDesc desc;
    desc.stream = rows.stream;
    desc.base = memory;
    desc.size_bytes = rows.bytes;
    return desc;
  }

  static engine::BufferDesc Pages(const Rows& rows) {
    engine::BufferDesc desc = Buffer(rows, rows.restored);
    desc.form = engine::BufferForm::kPages;
    desc.rows_per_page = kPageRows;
    desc.page_stride = uint64_t{kPageRows} * rows.row_bytes;
    desc.page_ids = rows.pages;
    desc.columns = {{0, rows.value_bytes(), rows.value_bytes()},
                    {uint64_t{kPageRows} * rows.value_bytes(), rows.scale_bytes, rows.scale_bytes}};
    return desc;
  }

  void Compute() {
    std::mt19937_64 random(1);
    for (const uint32_t stream : engine::RowStreams(layout_)) {
      Rows rows;
      rows.stream = stream;
      rows.row_bytes = layout_.stream(stream).row_bytes;
      rows.scale_bytes = rows.row_bytes == 584 ? 8 : 4;
      rows.bytes = kTokens / layout_.block_tokens() * layout_.StreamBlockBytes(stream);
      rows.computed = HugePages(rows.bytes);
      rows.restored = HugePages(rows.bytes);
      uint64_t value = stream + 1;
      for (uint64_t at = 0; at + sizeof(value) <= rows.bytes; at += sizeof(value)) {
        value = value * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(rows.computed + at, &value, sizeof(value));
      }
      if (rows.bytes % (uint64_t{kPageRows} * rows.row_bytes) != 0) Fail("the rows do not fill pages");
      rows.pages.resize(rows.bytes / rows.row_bytes / kPageRows);
      std::iota(rows.pages.begin(), rows.pages.end(), 0);
      std::shuffle(rows.pages.begin(), rows.pages.end(), random);
      rows_.push_back(rows);
    }
  }

  Folder folder_;
  const layout::Layout layout_;
  std::shared_ptr<engine::Cache> cache_;
  std::shared_ptr<engine::NameSpace> space_;
  std::vector<int32_t> tokens_;
  int32_t first_token_ = 0;
  std::vector<Rows> rows_;
};

// Of one restore's own time, so the pairs are first and last layer of the same run.
void PrintFirstLayer(World& world) {
  std::vector<double> shares;
  for (int i = 0; i < kPairs; ++i) {
    const auto [first, all] = world.Restore(Way::kEarlyRelease);
    shares.push_back(first / all);
  }
  std::sort(shares.begin(), shares.end());
  std::printf("ratio first_layer_time_share %.3f goal <=0.10 spread %.3f..%.3f pairs %d\n", shares[kPairs / 2],
              shares[kPairs / 4], shares[kPairs - 1 - kPairs / 4], kPairs);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t step = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 8'192;
  if (step == 0) Fail("0 tokens a step");
  World world(step);
  RawFile raw(world.folder() + "/raw", (world.row_bytes() + kMiB - 1) / kMiB, kMiB);
  raw.Write();
  world.Restore(Way::kWhole);
  world.Check();
  const auto read = [&] { raw.Read(); };
  if (raw.has_ring()) {
    ProvenAndMoved least(raw);
    PrintShare(
        "cold_restore_ceiling", "none", [&] { least.Run(0, raw.records()); }, read);
    least.Check();
  } else {
    std::printf("cold_restore: no io_uring here, the ceiling is left out\n");
  }
  PrintShare(
      "cold_restore_vs_raw", ">=0.90", [&] { world.Restore(Way::kWhole); }, read);
  world.Check();
  PrintShare(
      "cold_restore_early_vs_raw", ">=0.90", [&] { world.Restore(Way::kEarlyRelease); }, read);
  world.Check();
  PrintShare(
      "cold_restore_pages_vs_raw", ">=0.90", [&] { world.Restore(Way::kPages); }, read);
  world.CheckPages();
  PrintFirstLayer(world);
  world.Check();
  for (int i = 0; i < 20; ++i) world.Store(step);
  PrintShare(
      "durable_engine_put_vs_raw", ">=0.90", [&] { world.Store(step); }, [&] { raw.Write(); });
  world.Restore(Way::kWhole);
  world.Check();
  return 0;
}
