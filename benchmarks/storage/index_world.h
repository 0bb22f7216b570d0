// SPDX-License-Identifier: Apache-2.0
// A store of many blocks without their rows: a checkpoint and an empty journal as FORMAT.md has them, and segments that
// are files of nothing, since no open reads payload. For benchmarks of opening.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/storage/drive.h"
#include "lib/engine/cache.h"
#include "lib/format/record.h"
#include "lib/format/segment.h"
#include "lib/storage/segment/segment_storage.h"

namespace kvstrata::benchmarks {

// Well spread without the cost of hashing.
core::base::BlockDigest KeyOfBlock(uint64_t number);

std::unique_ptr<core::storage::SegmentStorage> OpenIndexStore(const std::string& path, bool read_only);
std::shared_ptr<core::engine::Cache> OpenIndexCache(const std::string& path, bool read_only);

// Before an opening is timed. Of all files of the folder, what is in the page cache goes; and the machine has memory
// that it need not ask its host for.
void CoolAll(const std::string& folder);

class IndexWorld {
 public:
  static constexpr uint64_t kChainBlocks = 64;  // of each sequence
  // Of a block of 64 tokens of V4-Flash.
  static constexpr uint64_t kBlockUnits = 60;
  static constexpr size_t kReadBytes = 1u << 20;

  // A million blocks in runs of `run`; KVSTRATA_OPEN_BLOCKS says otherwise. Whole sequences of them.
  explicit IndexWorld(uint64_t run);

  const std::string& path() const { return path_; }
  uint64_t blocks() const { return blocks_; }
  uint64_t run() const { return run_; }
  // Those of the namespace and of the engine itself included.
  uint64_t records() const { return blocks_ / run_ + own_records_; }
  const std::string& checkpoint() const { return checkpoint_; }
  // A multiple of kReadBytes.
  uint64_t checkpoint_bytes() const { return checkpoint_bytes_; }
  // A put of the run that begins with block `first`.
  core::format::LogEntry EntryOf(uint64_t first) const;
  // Opening the engine with a cold page cache: as the lane's writer, or as a reader. Checks that it has all blocks.
  double EngineSeconds(bool read_only) const;
  // What nobody who builds an index can do without: one read of the checkpoint past the page cache, and a bare table of
  // the same keys.
  double BareSeconds() const;
  // The same of a LeastIndex; a thread of its own reads ahead.
  double LeastSeconds() const;
  // What an opening has written goes, so that the next one finds what this one found.
  void RemoveLaterJournals() const { RemoveJournalsAfter(kJournal); }

 private:
  static constexpr uint64_t kJournal = 9;

  void MakeNamespace();
  void WriteLogs();
  std::vector<core::format::LogEntry> EntriesOfEngine() const;
  void RemoveJournalsAfter(uint64_t last) const;

  const uint64_t blocks_;
  const uint64_t run_;
  Folder folder_;
  const std::string path_;
  const std::string checkpoint_;
  uint64_t checkpoint_bytes_ = 0;
  uint64_t own_records_ = 0;
  uint64_t epoch_ = 0;
  core::format::NamespaceId life_{};
  core::base::BlockDigest root_;
};

}  // namespace kvstrata::benchmarks
