// SPDX-License-Identifier: Apache-2.0
// The reference of call_cost.py: what each case costs without any ABI, in the engine's own C++.
//
// usage: call_cost_core lookup|miss|restore|pinned_hit COUNT
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lib/engine/cache.h"
#include "lib/engine/match.h"
#include "lib/engine/pin.h"
#include "lib/engine/restore.h"
#include "lib/engine/writer.h"
#include "lib/storage/memory.h"

namespace {

namespace engine = kvstrata::core::engine;
namespace layout = kvstrata::core::layout;
namespace plan = kvstrata::core::plan;
namespace storage = kvstrata::core::storage;

constexpr uint32_t kTokens = 2048, kRowBytes = 16;

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) std::exit(1);
  return *std::move(value);
}

void Must(const absl::Status& status) {
  if (!status.ok()) std::exit(1);
}

struct World {
  std::shared_ptr<engine::Cache> cache;
  std::shared_ptr<engine::NameSpace> space;
  std::vector<int32_t> ids = std::vector<int32_t>(kTokens + 1);
  std::vector<int32_t> others = std::vector<int32_t>(kTokens + 1, 7);
  std::vector<std::byte> rows = std::vector<std::byte>(kTokens * kRowBytes, std::byte{5});
};

engine::BufferDesc Rows(World& world) {
  engine::BufferDesc desc;
  desc.base = world.rows.data();
  desc.size_bytes = world.rows.size();
  return desc;
}

void Open(World* world) {
  for (uint32_t i = 0; i <= kTokens; ++i) world->ids[i] = static_cast<int32_t>(i * 3);
  storage::MemoryOptions memory;
  memory.capacity_bytes = 128 << 20;
  engine::CacheOptions options;
  options.storage = std::make_shared<storage::MemoryStorage>(memory);
  options.capacity_bytes = 64 << 20;
  world->cache = Must(engine::Cache::Open(std::move(options)));
  layout::LayoutDesc desc;
  desc.block_tokens = 64;
  desc.streams.push_back(
      {layout::StreamKind::kRows, layout::Role::kOther, 0, 1, kRowBytes, 0, layout::Packing::kRaw, 0});
  const std::vector<layout::Field> fields = {{"model.weights", "w"}, {"tenant", ""}};
  bool existed = false;
  world->space = Must(world->cache->OpenNamespace(Must(layout::Identity::Create(fields)),
                                                  Must(layout::Layout::Create(std::move(desc))), false, &existed));
  auto writer =
      Must(engine::Writer::Open(world->cache, world->space, plan::SnapshotPolicy::Ends(), nullptr, nullptr, {}));
  Must(writer->SetSource(Rows(*world)));
  Must(writer->Advance(std::span<const int32_t>(world->ids).first(kTokens), {}, kTokens));
  engine::CommitInfo info;
  Must(writer->Commit(false, false, 30'000, &info));
}

std::unique_ptr<engine::Match> Lookup(World& world, const std::vector<int32_t>& ids) {
  engine::Prompt prompt;
  Must(prompt.Append(ids, {}));
  return Must(engine::Match::Lookup(world.cache, world.space, std::move(prompt), {}));
}

void Restore(World& world) {
  const auto match = Lookup(world, world.ids);
  const auto restore = Must(engine::RestorePlan::Create(*match, {}));
  std::vector<engine::BufferDesc> destinations;
  destinations.push_back(Rows(world));
  Must(restore->Start(std::move(destinations)));
  engine::RestoreResult result;
  Must(restore->Wait(UINT64_MAX, &result));
  if (result.plan.usable_tokens != kTokens) std::exit(1);
  restore->Release();
}

void Pin(const engine::Match& match) {
  const auto pin = Must(engine::Pin::Create(match));
  if (pin->end_token() != kTokens || pin->range(0).bytes.size() != kTokens * kRowBytes) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  World world;
  Open(&world);
  for (long i = std::atol(argv[2]); i > 0; --i) {
    if (std::strcmp(argv[1], "restore") == 0) {
      Restore(world);
      continue;
    }
    const bool miss = std::strcmp(argv[1], "miss") == 0;
    const auto match = Lookup(world, miss ? world.others : world.ids);
    if (std::strcmp(argv[1], "pinned_hit") == 0) Pin(*match);
    if (match->plan().usable_tokens != (miss ? 0 : kTokens)) return 1;
  }
  return 0;
}
