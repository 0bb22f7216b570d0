// SPDX-License-Identifier: Apache-2.0
// Behaviours of the list in tests/README.md that belong to no other file, each under its id.
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/fake_allocator.h"
#include "tests/support/fake_paged_engine.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

// A world on files.
struct FileWorld : World {
  explicit FileWorld(const std::string& path) : path_(path) {
    options.storage = nullptr;
    options.path = path_.c_str();
  }
  const std::string path_;
};

kvstrata_match_info InfoOf(const World& world, const Sequence& prompt, uint32_t modes = kAllExactModes) {
  auto lookup = Sized<kvstrata_lookup_options>();
  lookup.allowed_modes = modes;
  auto info = Sized<kvstrata_match_info>();
  world.LookUp(prompt, &info, lookup);
  return info;
}

// Rows of 8 bytes a token, packed in one way or another.
std::shared_ptr<const ModelLayout> LayoutOf(int32_t packing) {
  auto stream = Sized<kvstrata_stream>();
  stream.kind = KVSTRATA_STREAM_ROWS;
  stream.role = KVSTRATA_ROLE_KEY;
  stream.ratio = 1;
  stream.row_bytes = 8;
  stream.packing = packing;
  auto desc = Sized<kvstrata_layout_desc>();
  desc.block_tokens = 32;
  desc.streams = &stream;
  desc.stream_count = 1;
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_create(&desc, Out(layout), nullptr) == KVSTRATA_OK);
  return ModelLayout::Read(std::move(layout));
}

// Stores `length` tokens, closes, and restores all of them in a cache that was opened after.
void RoundTrip(const std::string& preset, uint64_t length) {
  CAPTURE(preset, length);
  TempDir directory(TempDir::Place::kMemory);
  FileWorld world(directory.path());
  world.kind = PagedEngine(preset);
  world.options.capacity_bytes = uint64_t{4} << 30;
  world.Open();
  const Sequence stored = RandomSequence(length, length);
  world.StoreSequence(stored);
  world.Close();
  world.Open();
  auto info = Sized<kvstrata_match_info>();
  auto lookup = Sized<kvstrata_lookup_options>();
  const MatchHandle match = world.LookUp(Longer(stored), &info, lookup);
  CHECK(info.matched_tokens == length / 128 * 128);
  CHECK(info.usable_tokens == length);
  auto result = Sized<kvstrata_plan_result>();
  const auto engine = world.Engine(length + 2);
  const std::string fault = engine->Restore(match.get(), Longer(stored), RestoreOptions{}, &result);
  INFO(fault);
  CHECK(fault.empty());
  CHECK(result.usable_tokens == length);
}

uint64_t SegmentBytes(const std::string& path) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.path().extension() == ".seg") bytes += entry.file_size();
  }
  return bytes;
}

}  // namespace

TEST_CASE("R10: after a reopening each miss has its reason, and a new prompt's is that it is absent", "[capi]") {
  TempDir directory;
  FileWorld world(directory.path());
  world.Open();
  const Sequence stored = RandomSequence(1, 200);
  world.StoreSequence(stored);
  world.Close();
  world.Open();
  CHECK(InfoOf(world, Longer(stored)).usable_tokens == 200);
  for (uint64_t seed = 2; seed < 7; ++seed) CHECK(InfoOf(world, RandomSequence(seed, 100)).usable_tokens == 0);
  CHECK(InfoOf(world, stored.Prefix(10)).usable_tokens == 0);
  const kvstrata_stats stats = world.Stats();
  CHECK(stats.hits == 1);
  CHECK(stats.misses == 6);
  CHECK(stats.reasons[KVSTRATA_REASON_ABSENT] == 5);
  CHECK(stats.reasons[KVSTRATA_REASON_SHORTER_THAN_BLOCK] == 1);
}

TEST_CASE("R18: with a path and a budget alone, what was stored is found after reopening", "[capi]") {
  TempDir directory;
  FileWorld world(directory.path());
  world.options = Sized<kvstrata_cache_options>();
  world.options.path = world.path_.c_str();
  world.options.capacity_bytes = 64 << 20;
  const Sequence stored = RandomSequence(1, 300);
  world.Open();
  world.StoreSequence(stored);
  world.Close();
  world.Open();
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(stored), &info);
  CHECK(world.Restore(match.get(), Longer(stored)) == 300);
}

TEST_CASE("I14: rows of another packing and equal size are never taken for each other", "[capi]") {
  TempDir directory;
  FileWorld world(directory.path());
  world.kind.layout = LayoutOf(KVSTRATA_PACKING_BF16);
  world.Open();
  const Sequence stored = RandomSequence(1, 100);
  world.StoreSequence(stored);
  CHECK(InfoOf(world, Longer(stored)).matched_tokens == 96);
  world.Close();
  world.kind.layout = LayoutOf(KVSTRATA_PACKING_F16);
  world.OpenCache();
  auto names = world.identity.Options(world.kind.layout->handle.get());
  names.flags = KVSTRATA_NAMESPACE_MUST_EXIST;
  Error error;
  NamespaceHandle missing;
  CHECK(kvstrata_namespace_open(world.cache.get(), &names, Out(missing), &error) == KVSTRATA_E_LAYOUT_MISMATCH);
  CHECK(std::string(error.message).find("packing") != std::string::npos);
  names.flags = 0;
  REQUIRE(kvstrata_namespace_open(world.cache.get(), &names, Out(world.space), nullptr) == KVSTRATA_OK);
  CHECK(InfoOf(world, Longer(stored)).matched_tokens == 0);
}

// KVSTRATA_GEOMETRY_TOKENS adds a length, 100000 for example: 0.5 GB.
TEST_CASE("I23: prompts of every boundary length come back from files in the geometry of real models", "[capi]") {
  for (const uint64_t length : {1, 127, 128, 129, 4095, 4096, 4097}) RoundTrip("deepseek-v4-flash", length);
  for (const uint64_t length : {1, 127, 128, 129}) {
    RoundTrip("deepseek-v4-pro", length);
    RoundTrip("deepseek-v4.1-flash", length);
  }
  const uint64_t more = EnvironmentNumber("KVSTRATA_GEOMETRY_TOKENS", 0);
  if (more > 0) RoundTrip("deepseek-v4-flash", more);
}

TEST_CASE("P08: opening with a memory tier of 64 GiB takes none of it", "[capi]") {
  CountingAllocator allocator;
  TempDir directory;
  FileWorld world(directory.path());
  world.options.allocator = allocator.table();
  world.options.capacity_bytes = uint64_t{1} << 40;
  world.options.memory_bytes = uint64_t{64} << 30;
  world.Open();
  CHECK(allocator.peak_bytes() <= 8 << 20);
  const Sequence stored = RandomSequence(1, 300);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(stored), &info);
  CHECK(world.Restore(match.get(), Longer(stored)) == 300);
  CHECK(allocator.peak_bytes() <= 128 << 20);
}

TEST_CASE("E03: a store on files does not grow into the floor, and serves what it has", "[capi]") {
  TempDir directory;
  FileWorld world(directory.path());
  world.Open();
  const Sequence stored = RandomSequence(1, 600);
  world.StoreSequence(stored);
  world.Close();
  const uint64_t before = SegmentBytes(directory.path());
  // More than any disk has: there is nothing left for the store.
  world.options.keep_free_bytes = UINT64_MAX;
  world.Open();
  CHECK(InfoOf(world, Longer(stored)).usable_tokens == 600);
  uint64_t newest = 0;
  for (uint64_t seed = 2; seed < 40; ++seed) {
    world.StoreSequence(RandomSequence(seed, 600));
    newest = InfoOf(world, Longer(RandomSequence(seed, 600))).matched_tokens;
  }
  CHECK(SegmentBytes(directory.path()) == before);
  CHECK(world.Stats().blocks_evicted > 0);
  CHECK(newest > 0);
}

}  // namespace kvstrata::test
