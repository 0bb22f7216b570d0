// SPDX-License-Identifier: Apache-2.0
// What becomes of a store that has evicted for long: the first requests of a real trace are replayed through the engine
// into a directory whose budget is a fifth of their distinct blocks. Then: restores of prefixes from the drive against
// a raw read of as many bytes; bytes that the process has written to the device over bytes admitted; what the records
// take of the segments over their rows; the most that evicted blocks kept of records that were still needed; and how
// much of evicted space is really there again for new blocks.
//
// usage: ageing_benchmark [REQUESTS]    1,000 by default: 3 GB are written. KVSTRATA_TRACES: the traces' folder.
// A block of the trace is one token here, and 127 KiB of rows that its id decides.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/ratio.h"
#include "benchmarks/storage/drive.h"
#include "benchmarks/storage/proven_and_moved.h"
#include "lib/engine/cache.h"
#include "lib/engine/match.h"
#include "lib/engine/restore.h"
#include "lib/engine/writer.h"
#include "lib/storage/segment/segment_storage.h"

namespace {

namespace engine = kvstrata::core::engine;
namespace layout = kvstrata::core::layout;
namespace storage = kvstrata::core::storage;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::HugePages;
using Request = std::vector<int32_t>;

// A block's rows. They lie in runs: with its share of a run's head a block takes just below 128 KiB, 32 units.
constexpr uint32_t kRowBytes = (128u << 10) - 1024;
// What the restores read together, in one run.
constexpr uint64_t kRestoredBlocks = 1200;

// One request a line: ..."hash_ids": [1, 2, 3]...
std::vector<Request> ReadTrace(size_t requests) {
  const char* const given = std::getenv("KVSTRATA_TRACES");
  std::ifstream file(std::string(given != nullptr ? given : "../shared/traces") + "/mooncake_conversation.jsonl");
  std::vector<Request> trace;
  for (std::string line; trace.size() < requests && std::getline(file, line);) {
    const size_t begin = line.find("\"hash_ids\"");
    const size_t open = begin == std::string::npos ? begin : line.find('[', begin);
    if (open == std::string::npos) continue;
    Request request;
    const char* at = line.c_str() + open + 1;
    for (char* end = nullptr;; at = end + std::strspn(end, ", ")) {
      const long id = std::strtol(at, &end, 10);
      if (end == at) break;
      request.push_back(static_cast<int32_t>(id));
    }
    if (!request.empty()) trace.push_back(std::move(request));
  }
  return trace;
}

// What the kernel has sent to devices in this process's name.
uint64_t DeviceBytesWritten() {
  std::ifstream file("/proc/self/io");
  for (std::string word; file >> word;) {
    uint64_t bytes = 0;
    if (word == "write_bytes:" && file >> bytes) return bytes;
  }
  Fail("the kernel does not say what was written");
}

void FillRow(int32_t id, std::byte* row) {
  uint64_t word = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u + 1;
  for (uint32_t at = 0; at < kRowBytes; at += sizeof word) {
    std::memcpy(row + at, &word, sizeof word);
    word = word * 6364136223846793005u + 1442695040888963407u;
  }
}

class Replay {
 public:
  Replay(const std::string& path, uint64_t capacity_bytes, size_t longest)
      : memory_(HugePages(longest * kRowBytes)), longest_(longest) {
    storage::SegmentOptions options;
    options.path = path;
    options.capacity_bytes = capacity_bytes;
    auto store = storage::SegmentStorage::Open(options);
    if (!store.ok()) Fail("cannot open the store");
    store_ = *std::move(store);
    engine::CacheOptions cache;
    cache.storage = store_;
    cache.capacity_bytes = capacity_bytes;
    auto opened = engine::Cache::Open(std::move(cache));
    if (!opened.ok()) Fail("cannot open the cache");
    cache_ = *std::move(opened);
    OpenSpace();
  }
  ~Replay() { static_cast<void>(cache_->Close(std::chrono::seconds(60), nullptr)); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Looks up, then stores what is missing, as a serving engine does.
  void Play(const Request& request) {
    const auto match = Lookup(request);
    const uint64_t from = match->plan().usable_tokens;
    auto writer = engine::Writer::Open(cache_, space_, policy_, match.get(), nullptr, {});
    if (!writer.ok()) Fail("cannot open a writer");
    for (uint64_t i = from; i < request.size(); ++i) FillRow(request[i], memory_ + i * kRowBytes);
    if (!(*writer)->SetSource(Rows(request.size())).ok()) Fail("a source was refused");
    const std::span<const int32_t> rest = std::span(request).subspan(from);
    if (!(*writer)->Advance(rest, {}, request.size()).ok()) Fail("an advance failed");
    if (!(*writer)->Commit(false, false, 60'000, nullptr).ok()) Fail("a commit failed");
  }

  // How many blocks came back. Every row's ends are compared, and all of the last one.
  uint64_t Restore(const Request& request) {
    const auto match = Lookup(request);
    auto plan = engine::RestorePlan::Create(*match, {});
    if (!plan.ok()) Fail("no plan");
    if (!(*plan)->Start({Rows(request.size())}).ok()) Fail("a restore was refused");
    engine::RestoreResult result;
    if (!(*plan)->Wait(60'000, &result).ok()) Fail("a restore failed");
    return result.plan.usable_tokens;
  }
  void CheckRestored(const Request& request, uint64_t blocks) const {
    std::vector<std::byte> row(kRowBytes);
    for (uint64_t i = 0; i < blocks; ++i) {
      FillRow(request[i], row.data());
      if (std::memcmp(row.data(), memory_ + i * kRowBytes, kRowBytes) != 0) Fail("a restore delivered other bytes");
    }
  }

  uint64_t StoredBlocks(const Request& request) {
    engine::LookupOptions peek;
    peek.peek = true;
    return Lookup(request, peek)->plan().usable_tokens;
  }

  engine::Cache& cache() { return *cache_; }
  storage::SegmentStorage& store() { return *store_; }

 private:
  void OpenSpace() {
    layout::LayoutDesc desc;
    desc.block_tokens = 1;
    layout::Stream rows;
    rows.role = layout::Role::kOther;
    rows.ratio = 1;
    rows.row_bytes = kRowBytes;
    desc.streams = {rows};
    auto made = layout::Layout::Create(desc);
    if (!made.ok()) Fail("no layout");
    std::vector<layout::Field> fields;
    for (const std::string_view name : layout::MandatoryNames(*made)) fields.push_back({std::string(name), "aged"});
    auto identity = layout::Identity::Create(std::move(fields));
    bool existed = false;
    auto space = cache_->OpenNamespace(*std::move(identity), *std::move(made), false, &existed);
    if (!space.ok()) Fail("no namespace");
    space_ = *std::move(space);
  }
  std::unique_ptr<engine::Match> Lookup(const Request& request, const engine::LookupOptions& options = {}) {
    Request prompt = request;
    prompt.push_back(-1);  // no match is longer than all tokens but one
    engine::Prompt tokens;
    if (!tokens.Append(prompt, {}).ok()) Fail("no prompt");
    auto match = engine::Match::Lookup(cache_, space_, std::move(tokens), options);
    if (!match.ok()) Fail("a lookup failed");
    return *std::move(match);
  }
  engine::BufferDesc Rows(size_t blocks) const {
    if (blocks > longest_) Fail("more rows than memory");
    engine::BufferDesc desc;
    desc.base = memory_;
    desc.size_bytes = blocks * kRowBytes;
    return desc;
  }

  std::byte* const memory_;
  const size_t longest_;
  std::shared_ptr<storage::SegmentStorage> store_;
  std::shared_ptr<engine::Cache> cache_;
  std::shared_ptr<engine::NameSpace> space_;
  kvstrata::core::plan::SnapshotPolicy policy_ = kvstrata::core::plan::SnapshotPolicy::Ends();
};

void Print(const char* name, double value, const char* goal) {
  std::printf("ratio ageing.%s %.3f goal %s\n", name, value, goal);
  std::fflush(stdout);
}

// The newest requests that are there still, no two with one beginning, until they have enough blocks together.
std::vector<Request> Survivors(Replay& replay, const std::vector<Request>& trace, uint64_t* blocks) {
  std::vector<Request> found;
  std::set<int32_t> beginnings;
  *blocks = 0;
  for (auto at = trace.rbegin(); at != trace.rend() && *blocks < kRestoredBlocks; ++at) {
    const uint64_t stored = replay.StoredBlocks(*at);
    if (stored < 8 || !beginnings.insert((*at)[stored / 2]).second) continue;
    *blocks += stored;
    found.emplace_back(at->begin(), at->begin() + static_cast<std::ptrdiff_t>(stored));
  }
  return found;
}

void MeasureRestores(Replay& replay, const std::vector<Request>& trace, const std::string& folder) {
  uint64_t blocks = 0;
  const std::vector<Request> prefixes = Survivors(replay, trace, &blocks);
  uint64_t right = 0;
  for (const Request& prefix : prefixes) {
    const uint64_t restored = replay.Restore(prefix);
    replay.CheckRestored(prefix, restored);
    right += restored;
  }
  if (right == 0 || right < blocks * 9 / 10) Fail("what was found could not be restored");
  kvstrata::benchmarks::RawFile raw(folder + "/raw", blocks, 128u << 10);
  raw.Write();
  if (replay.store().stats().direct == 0) std::printf("ageing: no direct I/O here, the page cache is measured\n");
  const auto read = [&] { raw.Read(); };
  kvstrata::benchmarks::PrintShare(
      "ageing.cold_restore_vs_raw", ">=0.80",
      [&] {
        for (const Request& prefix : prefixes) replay.Restore(prefix);
      },
      read);
  if (!raw.has_ring()) {
    std::printf("ageing: no io_uring here, the ceiling is left out\n");
    return;
  }
  // Each is there before the next one is asked for, on this side, too.
  kvstrata::benchmarks::ProvenAndMoved least(raw);
  kvstrata::benchmarks::PrintShare(
      "ageing.cold_restore_ceiling", "none",
      [&] {
        uint64_t at = 0;
        for (const Request& prefix : prefixes) {
          least.Run(at, prefix.size());
          at += prefix.size();
        }
      },
      read);
  least.Check();
}

// Evicts a tenth, then stores new blocks while the segments take them: what of the evicted bytes they find again.
void MeasureHoles(Replay& replay) {
  const uint64_t held = replay.cache().stats().held_bytes;
  const auto kept = replay.cache().Trim(held / 10 * 9);
  if (!kept.ok() || !replay.store().Sync().ok()) Fail("a trim failed");
  const storage::SegmentStats before = replay.store().stats();
  const uint64_t evicted = held - *kept;
  uint64_t taken = 0;
  for (int32_t id = -1000; taken < evicted; id -= 1000) {
    Request request;
    for (int32_t i = 0; i < 8; ++i) request.push_back(id - i);
    replay.Play(request);
    if (!replay.store().Sync().ok()) Fail("a sync failed");
    if (replay.store().stats().segment_bytes > before.segment_bytes) break;
    taken = replay.cache().stats().held_bytes - *kept;
  }
  Print("evicted_not_allocatable", 1 - std::min(1.0, static_cast<double>(taken) / static_cast<double>(evicted)),
        "<=0.05");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Request> trace = ReadTrace(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000);
  if (trace.empty()) {
    std::printf("ageing: no trace (KVSTRATA_TRACES names the folder): skipped\n");
    return 0;
  }
  std::set<int32_t> distinct;
  size_t longest = 0;
  for (const Request& request : trace) {
    distinct.insert(request.begin(), request.end());
    longest = std::max(longest, request.size());
  }
  const kvstrata::benchmarks::Folder folder;
  Replay replay(folder.path() + "/store", distinct.size() / 5 * (128u << 10), longest);
  const uint64_t written_before = DeviceBytesWritten();
  uint64_t unfreed = 0;
  for (const Request& request : trace) {
    replay.Play(request);
    unfreed = std::max(unfreed, replay.cache().stats().unfreed_bytes);
  }
  if (!replay.store().Sync().ok()) Fail("a sync failed");
  const uint64_t written = DeviceBytesWritten() - written_before;
  const engine::Stats stats = replay.cache().stats();
  if (stats.blocks_evicted == 0) Fail("nothing was evicted");
  std::printf("ageing: %zu requests, %zu distinct blocks, %llu stored, %llu evicted, %llu dropped\n", trace.size(),
              distinct.size(), static_cast<unsigned long long>(stats.blocks_stored),
              static_cast<unsigned long long>(stats.blocks_evicted),
              static_cast<unsigned long long>(stats.blocks_dropped));
  Print("device_bytes_written_per_admitted",
        static_cast<double>(written) / static_cast<double>(stats.blocks_stored * kRowBytes), "<=1.05");
  Print("unfreed_share", static_cast<double>(unfreed) / static_cast<double>(stats.capacity_bytes), "<=0.05");
  const storage::SegmentStats segments = replay.store().stats();
  Print("allocated_per_payload",
        static_cast<double>(segments.segment_bytes - segments.free_bytes) /
            static_cast<double>(stats.held_blocks * kRowBytes),
        "<=1.01");
  MeasureRestores(replay, trace, folder.path());
  MeasureHoles(replay);
  return 0;
}
