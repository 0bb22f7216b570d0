// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/staging_arena.h"

#include <algorithm>

namespace kvstrata::core::engine {
namespace {

constexpr uint64_t kPageBytes = 4096;
// A huge page is cleared as a whole when it is first touched (about 50 us): too much for a buffer that a drive fills in
// less time than that whatever its pages are.
constexpr uint64_t kSmallBytes = 64 * 1024;
// Whoever allows more staging memory than this has more than what is read into at one time.
constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 30;

}  // namespace

StagingArena::StagingArena(uint64_t bytes) : arena_(std::min(bytes, kMaxArenaBytes), std::min(bytes, kMaxArenaBytes)) {}

std::byte* StagingArena::Allocate(uint64_t bytes, uint64_t alignment) {
  std::byte* const placed = bytes >= kSmallBytes && alignment <= kPageBytes ? arena_.Take(bytes) : nullptr;
  if (placed == nullptr) return base::DefaultAllocator().Allocate(bytes, alignment);
  used_ = true;
  unsettled_ = true;
  return placed;
}

void StagingArena::Settle() {
  if (used_.exchange(false)) return;
  unsettled_ = false;
  if (!arena_.Shrink(kKeptBytes)) unsettled_ = true;
}

void StagingArena::Release(std::byte* memory, uint64_t bytes, uint64_t alignment) {
  if (!arena_.Give(memory, bytes)) base::DefaultAllocator().Release(memory, bytes, alignment);
}

}  // namespace kvstrata::core::engine
