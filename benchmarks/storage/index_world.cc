// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/storage/index_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "benchmarks/ratio.h"
#include "benchmarks/storage/least_index.h"

namespace kvstrata::benchmarks {
namespace {

namespace base = core::base;
namespace engine = core::engine;
namespace format = core::format;
namespace layout = core::layout;
namespace storage = core::storage;

constexpr uint64_t kBlockTokens = 64;
constexpr uint64_t kSegmentBytes = uint64_t{1} << 36;
// The first units of each segment are left to what the engine itself has put; no sequence goes over a segment's end.
constexpr uint64_t kFirstUnit = 1024;
constexpr uint64_t kChainsOfSegment =
    (kSegmentBytes / format::kUnitBytes - kFirstUnit) / (IndexWorld::kBlockUnits * IndexWorld::kChainBlocks);

uint64_t BlocksWanted() {
  const char* text = std::getenv("KVSTRATA_OPEN_BLOCKS");
  return text == nullptr ? 1'000'000 : std::strtoull(text, nullptr, 10);
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
  options.segment_bytes = kSegmentBytes;
  return options;
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

// Where a virtual machine gives memory that nobody uses back to its host, the next use waits for it: 0.36 GB/s were
// measured, and 12 once the machine had it. Otherwise who needs more memory is measured by what the host does.
void TakeMemory() {
  constexpr size_t kBytes = 512u << 20;  // more than an opening of a million runs of one block takes
  constexpr size_t kPageBytes = 4096;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("no memory");
  madvise(memory, kBytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < kBytes; i += kPageBytes) static_cast<volatile std::byte*>(memory)[i] = std::byte{1};
  munmap(memory, kBytes);
}

}  // namespace

base::BlockDigest KeyOfBlock(uint64_t number) {
  const uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15;  // odd, so a bijection
  return {{mixed ^ (mixed >> 29), mixed}, number};
}

std::unique_ptr<storage::SegmentStorage> OpenIndexStore(const std::string& path, bool read_only) {
  auto opened = storage::SegmentStorage::Open(OptionsOf(path, read_only));
  if (!opened.ok()) Fail("cannot open the store");
  return *std::move(opened);
}

std::shared_ptr<engine::Cache> OpenIndexCache(const std::string& path, bool read_only) {
  engine::CacheOptions options;
  options.storage = OpenIndexStore(path, read_only);
  options.read_only = read_only;
  options.capacity_bytes = uint64_t{1} << 40;
  auto opened = engine::Cache::Open(options);
  if (!opened.ok()) Fail("cannot open the cache");
  return *std::move(opened);
}

void CoolAll(const std::string& folder) {
  TakeMemory();
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const int fd = open(file.path().c_str(), O_RDONLY);
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0 || close(fd) != 0) Fail("cannot cool a file");
  }
}

IndexWorld::IndexWorld(uint64_t run)
    : blocks_(BlocksWanted() / kChainBlocks * kChainBlocks),
      run_(run),
      path_(folder_.path() + "/store"),
      checkpoint_(path_ + "/checkpoint-a.ckp") {
  MakeNamespace();
  WriteLogs();
  const uint64_t chains = (blocks_ + kChainBlocks - 1) / kChainBlocks;
  for (uint64_t segment = 0; segment * kChainsOfSegment < chains; ++segment) {
    char name[32];
    std::snprintf(name, sizeof name, "/data-%04u.seg", static_cast<unsigned>(segment));
    const int fd = open((path_ + name).c_str(), O_WRONLY | O_CREAT, 0600);
    if (ftruncate(fd, static_cast<int64_t>(kSegmentBytes)) != 0 || close(fd) != 0) Fail("cannot make a segment");
  }
}

// Namespace and store records as the engine makes them.
void IndexWorld::MakeNamespace() {
  const std::shared_ptr<engine::Cache> cache = OpenIndexCache(path_, false);
  const std::vector<layout::Field> fields = {{"model.weights", "none"}, {"tenant", ""}};
  const auto identity = layout::Identity::Create(fields);
  bool existed = false;
  const auto space = cache->OpenNamespace(*identity, RowsOnly(), false, &existed);
  if (!space.ok()) Fail("cannot make the namespace");
  life_ = (*space)->life;
  root_ = (*space)->trie.root_key();
  if (!cache->Close(std::chrono::seconds(10), nullptr).ok()) Fail("cannot close");
}

// The namespace's record and all blocks in a checkpoint, and the journal behind it, which is empty.
void IndexWorld::WriteLogs() {
  const int super = open((path_ + "/super").c_str(), O_RDONLY);
  std::array<std::byte, format::kSuperblockBytes> bytes;
  if (pread(super, bytes.data(), bytes.size(), 4096) != static_cast<ssize_t>(bytes.size())) Fail("no superblock");
  close(super);
  const format::Superblock superblock = format::DecodeSuperblock(bytes).value();
  format::LogHeader header;
  header.kind = format::LogKind::kCheckpoint;
  header.store = superblock.store;
  epoch_ = header.epoch = superblock.epoch;
  header.number = kJournal;
  header.salt = 77;
  std::vector<std::byte> log(format::kLogBodyOffset);
  for (const format::LogEntry& entry : EntriesOfEngine()) {
    format::AppendEntry(entry, header.salt, log.size(), &log);
    ++header.entries;
  }
  own_records_ = header.entries;
  for (uint64_t first = 0; first < blocks_; first += run_) {
    format::AppendEntry(EntryOf(first), header.salt, log.size(), &log);
    ++header.entries;
  }
  header.body_bytes = log.size() - format::kLogBodyOffset;
  std::ranges::copy(format::EncodeLogHeader(header), log.begin());
  log.resize((log.size() + kReadBytes - 1) / kReadBytes * kReadBytes);
  checkpoint_bytes_ = log.size();
  RemoveJournalsAfter(0);
  WriteAll(checkpoint_, log);
  header.kind = format::LogKind::kJournal;
  header.entries = header.body_bytes = 0;
  const auto head = format::EncodeLogHeader(header);
  WriteAll(path_ + "/journal-0009.log", {head.begin(), head.end()});
}

// Of the journal that the engine has made: namespace and store.
std::vector<format::LogEntry> IndexWorld::EntriesOfEngine() const {
  std::vector<std::byte> bytes(1u << 20);
  const int fd = open((path_ + "/journal-0001.log").c_str(), O_RDONLY);
  const ssize_t got = pread(fd, bytes.data(), bytes.size(), 0);
  close(fd);
  if (got < static_cast<ssize_t>(format::kLogBodyOffset)) Fail("no journal");
  bytes.resize(static_cast<size_t>(got));
  const uint64_t salt = format::DecodeLogHeader(bytes, format::LogKind::kJournal).value().salt;
  std::map<std::array<std::byte, 32>, format::LogEntry> last;
  for (uint64_t offset = format::kLogBodyOffset; offset + format::kLogBlockBytes <= bytes.size();) {
    uint64_t size = 0;
    const auto entry = format::DecodeEntry(base::ByteView(bytes).subspan(offset), salt, offset, &size);
    if (entry.ok()) last[entry->key] = *entry;
    offset = entry.ok() ? offset + size : (offset / format::kLogBlockBytes + 1) * format::kLogBlockBytes;
  }
  std::vector<format::LogEntry> entries;
  for (const auto& [key, entry] : last) {
    if (entry.kind == format::EntryKind::kPut) entries.push_back(entry);
  }
  return entries;
}

double IndexWorld::EngineSeconds(bool read_only) const {
  CoolAll(path_);
  std::shared_ptr<engine::Cache> cache;
  const double seconds = SecondsOf([&] { cache = OpenIndexCache(path_, read_only); });
  if (cache->stats().recovered_blocks != blocks_) Fail("the index is not whole");
  if (!cache->Close(std::chrono::minutes(1), nullptr).ok()) Fail("cannot close");
  if (!read_only) RemoveLaterJournals();
  return seconds;
}

double IndexWorld::BareSeconds() const {
  static std::byte* const room = HugePages(kReadBytes);
  CoolAll(path_);
  return SecondsOf([&] {
    const int fd = open(checkpoint_.c_str(), O_RDONLY | O_DIRECT);
    uint64_t read_bytes = 0;
    for (ssize_t got = 1; got > 0; read_bytes += static_cast<uint64_t>(got)) {
      got = pread(fd, room, kReadBytes, static_cast<off_t>(read_bytes));
    }
    close(fd);
    if (read_bytes != checkpoint_bytes_) Fail("the checkpoint was not read");
    absl::flat_hash_map<base::Digest128, uint32_t> table;
    table.reserve(blocks_);
    for (uint64_t i = 0; i < blocks_; ++i) table.emplace(KeyOfBlock(i).digest, static_cast<uint32_t>(i));
    if (table.size() != blocks_) Fail("the table is not whole");
  });
}

double IndexWorld::LeastSeconds() const {
  std::byte* const memory = HugePages(checkpoint_bytes_);
  const base::ByteView log(memory, checkpoint_bytes_);
  CoolAll(path_);
  const uint64_t records = blocks_ / run_;
  const double seconds = SecondsOf([&] {
    std::atomic<uint64_t> filled{0};
    std::thread reader([&] {
      const int fd = open(checkpoint_.c_str(), O_RDONLY | O_DIRECT);
      for (ssize_t got = 1; got > 0 && filled < checkpoint_bytes_; filled += static_cast<uint64_t>(got)) {
        got = pread(fd, memory + filled, kReadBytes, static_cast<off_t>(filled.load()));
        if (got < 0) Fail("the checkpoint was not read");
      }
      close(fd);
    });
    const auto wait_for = [&](uint64_t bytes) {
      while (filled.load(std::memory_order_acquire) < std::min(bytes, checkpoint_bytes_)) std::this_thread::yield();
    };
    LeastIndex index(records, blocks_);
    wait_for(format::kLogBodyOffset);
    const uint64_t salt = format::DecodeLogHeader(log, format::LogKind::kCheckpoint).value().salt;
    uint64_t offset = format::kLogBodyOffset;
    for (uint64_t entries = 0; entries < records + own_records_; ++entries) {
      wait_for(offset + format::kMaxEntryBytes);
      const uint64_t bytes = index.Take(log, salt, offset);
      if (bytes == 0) Fail("an entry is damaged");
      offset += bytes;
    }
    index.TakeRest();
    reader.join();
    if (index.blocks() != blocks_ || index.records() != records) Fail("the tables are not whole");
  });
  munmap(memory, checkpoint_bytes_);
  return seconds;
}

void IndexWorld::RemoveJournalsAfter(uint64_t last) const {
  for (uint64_t number = last + 1; number < last + 64; ++number) {
    char name[32];
    std::snprintf(name, sizeof name, "/journal-%04u.log", static_cast<unsigned>(number));
    unlink((path_ + name).c_str());
  }
}

format::LogEntry IndexWorld::EntryOf(uint64_t first) const {
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
  entry.sequence = (epoch_ << 40) + 1000 + first;
  entry.payload_bytes = meta.payload_bytes;
  // Behind what the namespace took, and none over a segment's end.
  const uint64_t chain = first / kChainBlocks;
  const uint64_t unit = kFirstUnit + (chain % kChainsOfSegment * kChainBlocks + depth) * kBlockUnits;
  entry.extents = {{static_cast<uint32_t>(chain / kChainsOfSegment), static_cast<uint32_t>(unit),
                    static_cast<uint32_t>(run_ * kBlockUnits)}};
  entry.meta = format::EncodeRecordMeta(meta);
  return entry;
}

}  // namespace kvstrata::benchmarks
