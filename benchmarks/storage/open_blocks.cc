// SPDX-License-Identifier: Apache-2.0
// Opening a store of a million blocks until it can be asked, cold: the segment store with its listing, and the engine
// above it with its index, each against what nobody can do without: one read of the same log past the page cache, and a
// bare table of the same keys. Runs of one block, and of 64.
//
// The logs are written here, as FORMAT.md has them; segments are files of nothing, since no open reads payload. The
// files go to the current directory.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "benchmarks/ratio.h"
#include "benchmarks/storage/drive.h"
#include "lib/engine/cache.h"
#include "lib/format/record.h"
#include "lib/format/segment.h"
#include "lib/storage/segment/segment_storage.h"

namespace {

namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace format = kvstrata::core::format;
namespace layout = kvstrata::core::layout;
namespace storage = kvstrata::core::storage;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::Folder;
using kvstrata::benchmarks::HugePages;

constexpr int kPairs = 11;
constexpr uint64_t kChainBlocks = 64;  // of each sequence
// Of a block of 64 tokens of V4-Flash.
constexpr uint64_t kBlockUnits = 60;
constexpr uint64_t kBlockTokens = 64;
constexpr size_t kReadBytes = 1u << 20;

uint64_t Blocks() {
  const char* text = std::getenv("KVSTRATA_OPEN_BLOCKS");
  return text == nullptr ? 1'000'000 : std::strtoull(text, nullptr, 10) / kChainBlocks * kChainBlocks;
}

// Well spread without the cost of hashing: odd, so a bijection.
base::BlockDigest KeyOfBlock(uint64_t i) {
  const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15;
  return {{mixed ^ (mixed >> 29), mixed}, i};
}

layout::Layout RowsOnly() {
  layout::LayoutDesc desc;
  desc.block_tokens = kBlockTokens;
  desc.streams.resize(1);
  desc.streams[0].ratio = 1;
  desc.streams[0].row_bytes = 3584;
  return layout::Layout::Create(desc).value();
}

storage::SegmentOptions OptionsOf(const std::string& path, bool read_only) {
  storage::SegmentOptions options;
  options.path = path;
  options.read_only = read_only;
  options.capacity_bytes = uint64_t{1} << 40;
  options.segment_bytes = uint64_t{1} << 36;
  return options;
}

std::unique_ptr<storage::SegmentStorage> OpenStore(const std::string& path, bool read_only) {
  auto opened = storage::SegmentStorage::Open(OptionsOf(path, read_only));
  if (!opened.ok()) Fail("cannot open the store");
  return *std::move(opened);
}

std::shared_ptr<engine::Cache> OpenCache(const std::string& path, bool read_only) {
  engine::CacheOptions options;
  options.storage = OpenStore(path, read_only);
  options.read_only = read_only;
  options.capacity_bytes = uint64_t{1} << 40;
  auto opened = engine::Cache::Open(options);
  if (!opened.ok()) Fail("cannot open the cache");
  return *std::move(opened);
}

void WriteAll(const std::string& name, const std::vector<std::byte>& bytes) {
  const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(fd, bytes.data() + done, bytes.size() - done);
    if (written <= 0) Fail("cannot write a log");
    done += static_cast<size_t>(written);
  }
  if (fsync(fd) != 0 || close(fd) != 0) Fail("cannot flush a log");
}

class World {
 public:
  explicit World(uint64_t run) : run_(run), path_(folder_.path() + "/store") {
    {
      // Namespace and store records as the engine makes them.
      const std::shared_ptr<engine::Cache> cache = OpenCache(path_, false);
      const std::vector<layout::Field> fields = {{"model.weights", "none"}, {"tenant", ""}};
      const auto identity = layout::Identity::Create(fields);
      bool existed = false;
      const auto space = cache->OpenNamespace(*identity, RowsOnly(), false, &existed);
      if (!space.ok()) Fail("cannot make the namespace");
      life_ = (*space)->life;
      root_ = (*space)->trie.root_key();
      if (!cache->Close(std::chrono::seconds(10), nullptr).ok()) Fail("cannot close");
    }
    WriteJournal();
    for (uint64_t segment = 0; segment < 16; ++segment) {
      char name[32];
      std::snprintf(name, sizeof name, "/data-%04u.seg", static_cast<unsigned>(segment));
      const int fd = open((path_ + name).c_str(), O_WRONLY | O_CREAT, 0600);
      if (ftruncate(fd, int64_t{1} << 36) != 0 || close(fd) != 0) Fail("cannot make a segment");
    }
  }

  // What is in the page cache of the logs goes.
  void Cool() const {
    const int fd = open(log_.c_str(), O_RDONLY);
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0 || close(fd) != 0) Fail("cannot cool the log");
  }

  double StoreSeconds() const {
    Cool();
    uint64_t listed = 0;
    std::unique_ptr<storage::SegmentStorage> store;
    const double seconds = kvstrata::benchmarks::SecondsOf([&] {
      store = OpenStore(path_, true);
      storage::ListPage page;
      for (storage::Cursor cursor; !page.done; cursor = page.next) {
        if (!store->List(cursor, 4096, &page).ok()) Fail("cannot list");
        listed += page.entries.size();
      }
    });
    if (listed != Blocks() / run_ + 2) Fail("the listing is not whole");
    return seconds;
  }

  double EngineSeconds() const {
    Cool();
    std::shared_ptr<engine::Cache> cache;
    const double seconds = kvstrata::benchmarks::SecondsOf([&] { cache = OpenCache(path_, true); });
    if (cache->stats().recovered_blocks != Blocks()) Fail("the index is not whole");
    return seconds;
  }

  double RawSeconds() {
    Cool();
    const uint64_t blocks = Blocks();
    return kvstrata::benchmarks::SecondsOf([&] {
      const int fd = open(log_.c_str(), O_RDONLY | O_DIRECT);
      uint64_t read_bytes = 0;
      for (ssize_t got = 1; got > 0; read_bytes += static_cast<uint64_t>(got)) {
        got = pread(fd, room_, kReadBytes, static_cast<off_t>(read_bytes));
      }
      close(fd);
      if (read_bytes != log_bytes_) Fail("the log was not read");
      absl::flat_hash_map<base::Digest128, uint32_t> table;
      table.reserve(blocks);
      for (uint64_t i = 0; i < blocks; ++i) table.emplace(KeyOfBlock(i).digest, static_cast<uint32_t>(i));
      if (table.size() != blocks) Fail("the table is not whole");
    });
  }

 private:
  void WriteJournal() {
    const int super = open((path_ + "/super").c_str(), O_RDONLY);
    std::array<std::byte, format::kSuperblockBytes> bytes;
    if (pread(super, bytes.data(), bytes.size(), 4096) != static_cast<ssize_t>(bytes.size())) Fail("no superblock");
    close(super);
    const format::Superblock superblock = format::DecodeSuperblock(bytes).value();
    format::LogHeader header;
    header.store = superblock.store;
    header.epoch = superblock.epoch;
    header.number = 9;
    header.salt = 77;
    const auto head = format::EncodeLogHeader(header);
    std::vector<std::byte> log(head.begin(), head.end());
    log.resize(format::kLogBodyOffset);
    for (uint64_t first = 0; first < Blocks(); first += run_) {
      format::AppendEntry(EntryOf(first, superblock.epoch), header.salt, log.size(), &log);
    }
    log.resize((log.size() + kReadBytes - 1) / kReadBytes * kReadBytes);
    log_bytes_ = log.size();
    log_ = path_ + "/journal-0009.log";
    WriteAll(log_, log);
  }

  format::LogEntry EntryOf(uint64_t first, uint64_t epoch) const {
    const uint64_t depth = first % kChainBlocks;
    format::RecordMeta meta;
    meta.identity.kind = format::RecordKind::kBlock;
    meta.identity.name_space = life_;
    meta.identity.sequence = (uint64_t{1} << 32) + 100 + first;
    meta.identity.position = (depth + 1) * kBlockTokens;
    meta.identity.key = KeyOfBlock(first);
    meta.identity.parent = depth == 0 ? root_ : KeyOfBlock(first - 1);
    meta.payload_bytes = run_ * kBlockUnits * format::kUnitBytes;
    for (uint64_t i = 1; i < run_; ++i) meta.more.push_back(KeyOfBlock(first + i));
    format::LogEntry entry;
    entry.key = format::MakeRecordKey(format::RecordKind::kBlock, meta.identity.key);
    entry.sequence = (epoch << 40) + 1000 + first;
    entry.payload_bytes = meta.payload_bytes;
    // Behind what the namespace took, and none over a segment's end.
    const uint64_t per_segment = ((uint64_t{1} << 36) / format::kUnitBytes - 1024) / (kBlockUnits * kChainBlocks);
    const uint64_t chain = first / kChainBlocks;
    const uint64_t unit = 1024 + (chain % per_segment * kChainBlocks + depth) * kBlockUnits;
    entry.extents = {{static_cast<uint32_t>(chain / per_segment), static_cast<uint32_t>(unit),
                      static_cast<uint32_t>(run_ * kBlockUnits)}};
    entry.meta = format::EncodeRecordMeta(meta);
    return entry;
  }

  const uint64_t run_;
  Folder folder_;
  const std::string path_;
  std::string log_;
  uint64_t log_bytes_ = 0;
  format::NamespaceId life_{};
  base::BlockDigest root_;
  std::byte* const room_ = HugePages(kReadBytes);
};

void PrintOpen(uint64_t run) {
  World world(run);
  const std::string name = "open_of_runs_of_" + std::to_string(run);
  const auto raw = [&] { return world.RawSeconds(); };
  using kvstrata::benchmarks::PrintTimedPairs;
  PrintTimedPairs((name + "_store_vs_raw").c_str(), "<=1.25", kPairs, [&] { return world.StoreSeconds(); }, raw, false);
  PrintTimedPairs((name + "_engine_vs_raw").c_str(), "<=1.25", kPairs, [&] { return world.EngineSeconds(); }, raw,
                  false);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  PrintOpen(64);
  PrintOpen(1);
  return 0;
}
