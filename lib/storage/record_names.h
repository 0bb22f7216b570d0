// SPDX-License-Identifier: Apache-2.0
// The names inside a file store's directory (lib/format/FORMAT.md, "Record files"), made and recognised without
// allocating.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lib/storage/storage.h"

namespace kvstrata::core::storage {

inline constexpr char kStagingFolder[] = "staging";
inline constexpr char kRecordsFolder[] = "records";

// A path relative to the store's directory; the longest, a record's, is 78 bytes.
using Name = std::array<char, 96>;

uint32_t ShardOf(const Key& key);
Name ShardFolder(uint32_t shard);
Name RecordName(const Key& key);
// The key that a name within a shard's folder stands for, or nothing.
std::optional<Key> KeyOfRecordName(std::string_view name);

Name StagingName(uint64_t opener, uint64_t sequence);
// For a name within the staging folder.
bool IsStagingName(std::string_view name);

}  // namespace kvstrata::core::storage
