// SPDX-License-Identifier: Apache-2.0
// Identities and extra keys as walls between prefixes; mismatches that name what differs; forgetting.
#include <cstring>
#include <string>

#include "tests/support/catch.hpp"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

kvstrata_status OpenSpace(World* world, const kvstrata_layout* layout, uint32_t flags, NamespaceHandle* space,
                          Error* error) {
  auto names = world->identity.Options(layout);
  names.flags = flags;
  return kvstrata_namespace_open(world->cache.get(), &names, Out(*space), error);
}

uint64_t Matched(const World& world, const Sequence& prompt) {
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(prompt), &info);
  return info.matched_tokens;
}

}  // namespace

TEST_CASE("each mandatory name of a preset is asked for by name", "[capi]") {
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_from_preset("deepseek-v4-flash", nullptr, Out(layout), nullptr) == KVSTRATA_OK);
  for (const char* name : {"model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version",
                           "kernel.numerics", "tenant"}) {
    World world;
    world.OpenCache();
    world.identity.Remove(name);
    NamespaceHandle space;
    Error error;
    CHECK(OpenSpace(&world, layout.get(), 0, &space, &error) == KVSTRATA_E_INVALID_ARGUMENT);
    CHECK((std::string(error.field) + error.message).find(name) != std::string::npos);
    // An empty value is a value.
    world.identity.Add(name, "");
    CHECK(OpenSpace(&world, layout.get(), 0, &space, &error) == KVSTRATA_OK);
  }
}

TEST_CASE("a split stream asks for the shard", "[capi]") {
  auto stream = Sized<kvstrata_stream>();
  stream.kind = KVSTRATA_STREAM_ROWS;
  stream.role = KVSTRATA_ROLE_KEY;
  stream.ratio = 1;
  stream.row_bytes = 64;
  stream.packing = KVSTRATA_PACKING_RAW;
  stream.flags = KVSTRATA_STREAM_EXACT | KVSTRATA_STREAM_SPLIT;
  auto desc = Sized<kvstrata_layout_desc>();
  desc.streams = &stream;
  desc.stream_count = 1;
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_create(&desc, Out(layout), nullptr) == KVSTRATA_OK);
  World world;
  world.OpenCache();
  NamespaceHandle space;
  Error error;
  CHECK(OpenSpace(&world, layout.get(), 0, &space, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK((std::string(error.field) + error.message).find("shard") != std::string::npos);
  world.identity.Add("shard", "1/4");
  CHECK(OpenSpace(&world, layout.get(), 0, &space, &error) == KVSTRATA_OK);
}

TEST_CASE("identities that cannot be are refused", "[capi]") {
  World world;
  world.OpenCache();
  NamespaceHandle space;
  Error error;
  const kvstrata_layout* layout = world.kind.layout->handle.get();
  SECTION("a name twice") {
    world.identity.Add("adapter", "b");
    CHECK(OpenSpace(&world, layout, 0, &space, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  }
  SECTION("a name with other characters") {
    world.identity.Add("Adapter", "b");
    CHECK(OpenSpace(&world, layout, 0, &space, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  }
  SECTION("a value of 64 KiB and one byte") {
    world.identity.Add("extra", std::string(65537, 'x'));
    CHECK(OpenSpace(&world, layout, 0, &space, &error) == KVSTRATA_E_INVALID_ARGUMENT);
    CHECK((std::string(error.field) + error.message).find("extra") != std::string::npos);
  }
  SECTION("NULL with a size") {
    auto names = world.identity.Options(layout);
    auto fields = world.identity.Fields();
    fields[2].bytes = nullptr;
    names.fields = fields.data();
    CHECK(kvstrata_namespace_open(world.cache.get(), &names, Out(space), &error) == KVSTRATA_E_INVALID_ARGUMENT);
  }
  SECTION("more fields than 64") {
    for (int i = 0; i < 64; ++i) world.identity.Add("field" + std::to_string(i), "");
    CHECK(OpenSpace(&world, layout, 0, &space, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  }
  CHECK(space == nullptr);
}

TEST_CASE("another identity finds nothing, and the field that differs is named", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 100);
  world.StoreSequence(stored);
  CHECK(Matched(world, stored) == 96);
  auto info = Sized<kvstrata_namespace_info>();
  REQUIRE(kvstrata_namespace_get_info(world.space.get(), &info, nullptr) == KVSTRATA_OK);
  CHECK(info.existed == 0);
  CHECK(info.blocks == 3);
  CHECK(info.snapshots == 1);
  CHECK(info.row_bytes > 0);

  world.identity.Set("adapter", "another");
  Error error;
  NamespaceHandle missing;
  CHECK(OpenSpace(&world, world.kind.layout->handle.get(), KVSTRATA_NAMESPACE_MUST_EXIST, &missing, &error) ==
        KVSTRATA_E_IDENTITY_MISMATCH);
  CHECK(std::string(error.message).find("adapter") != std::string::npos);
  CHECK(missing == nullptr);
  REQUIRE(OpenSpace(&world, world.kind.layout->handle.get(), 0, &world.space, &error) == KVSTRATA_OK);
  CHECK(Matched(world, stored) == 0);
  info = Sized<kvstrata_namespace_info>();
  REQUIRE(kvstrata_namespace_get_info(world.space.get(), &info, nullptr) == KVSTRATA_OK);
  CHECK(std::string(info.nearest_difference).find("adapter") != std::string::npos);

  world.identity.Set("adapter", "test adapter");
  REQUIRE(OpenSpace(&world, world.kind.layout->handle.get(), KVSTRATA_NAMESPACE_MUST_EXIST, &world.space, &error) ==
          KVSTRATA_OK);
  CHECK(Matched(world, stored) == 96);
}

TEST_CASE("another block size finds nothing, and is named with both values", "[capi]") {
  const auto layout_of = [](uint32_t block_tokens) {
    LayoutHandle layout;
    REQUIRE(kvstrata_layout_gqa(2, 2, 16, 2, block_tokens, Out(layout), nullptr) == KVSTRATA_OK);
    return layout;
  };
  World world;
  world.kind.layout = ModelLayout::Read(layout_of(128));
  world.Open();
  const Sequence stored = RandomSequence(1, 300);
  world.StoreSequence(stored);
  CHECK(Matched(world, stored) == 256);
  const uint64_t held = world.Stats().held_row_bytes;
  world.Close();

  const LayoutHandle other = layout_of(256);
  world.OpenCache();
  Error error;
  NamespaceHandle missing;
  CHECK(OpenSpace(&world, other.get(), KVSTRATA_NAMESPACE_MUST_EXIST, &missing, &error) == KVSTRATA_E_LAYOUT_MISMATCH);
  CHECK(std::string(error.message).find("block_tokens") != std::string::npos);
  CHECK(std::string(error.message).find("128") != std::string::npos);
  CHECK(std::string(error.message).find("256") != std::string::npos);
  REQUIRE(OpenSpace(&world, other.get(), 0, &world.space, &error) == KVSTRATA_OK);
  CHECK(Matched(world, stored) == 0);
  auto info = Sized<kvstrata_namespace_info>();
  REQUIRE(kvstrata_namespace_get_info(world.space.get(), &info, nullptr) == KVSTRATA_OK);
  CHECK(std::string(info.nearest_difference).find("block_tokens: stored 128, given 256") != std::string::npos);
  CHECK(info.foreign_layout_bytes >= held);
  CHECK(world.Stats().foreign_layout_bytes >= held);
  CHECK(world.Stats().reasons[KVSTRATA_REASON_ABSENT] == 1);

  uint64_t purged = 0;
  REQUIRE(kvstrata_cache_purge_foreign(world.cache.get(), &purged, nullptr) == KVSTRATA_OK);
  CHECK(purged >= held);
  CHECK(world.Stats().foreign_layout_bytes == 0);
  CHECK(world.Stats().held_row_bytes == 0);
}

TEST_CASE("tenants do not see each other, and each keeps its own rows", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 100);
  world.StoreSequence(stored);
  world.identity.Set("tenant", "somebody else");
  REQUIRE(OpenSpace(&world, world.kind.layout->handle.get(), 0, &world.space, nullptr) == KVSTRATA_OK);
  CHECK(Matched(world, stored) == 0);
  world.StoreSequence(stored);
  CHECK(Matched(world, stored) == 96);
  CHECK(world.Stats().held_blocks == 6);
}

TEST_CASE("extra keys separate prefixes that have equal tokens", "[capi]") {
  World world;
  world.Open();
  const auto with_image = [](const std::string& digest) {
    const Sequence plain = RandomSequence(1, 100);
    Sequence sequence;
    for (uint64_t i = 0; i < plain.size(); ++i) {
      const SequenceKey key{40, 7, digest};
      sequence.Append(plain.token(i), i == 40 ? &key : nullptr);
    }
    return sequence;
  };
  const Sequence a = with_image("image a");
  const Sequence b = with_image("image b");
  world.StoreSequence(a);
  CHECK(Matched(world, a) == 96);
  CHECK(Matched(world, b) == 32);  // the block of token 40 differs
  CHECK(Matched(world, RandomSequence(1, 100)) == 32);
  world.StoreSequence(b);
  for (const Sequence& sequence : {a, b}) {
    auto info = Sized<kvstrata_match_info>();
    MatchHandle match = world.LookUp(Longer(sequence), &info);
    CHECK(info.usable_tokens == 100);
    CHECK(world.Restore(match.get(), Longer(sequence)) == 100);
  }
}

TEST_CASE("all 65,537 identities of an image are different prefixes", "[capi]") {
  // What a key of 16 bits could not tell apart. One block each; the lookups alone are compared.
  World world;
  world.Open();
  const Sequence plain = RandomSequence(1, 40);
  const auto look_up = [&](uint32_t digest) {
    Sequence tokens = plain;
    auto key = Sized<kvstrata_extra_key>();
    key.position = 5;
    key.bytes = &digest;
    key.size = sizeof digest;
    kvstrata_tokens view = *tokens.All();
    view.extra_keys = &key;
    view.extra_key_count = 1;
    MatchHandle match;
    REQUIRE(kvstrata_lookup(world.space.get(), &view, nullptr, Out(match), nullptr) == KVSTRATA_OK);
    auto info = Sized<kvstrata_match_info>();
    REQUIRE(kvstrata_match_get_info(match.get(), &info, nullptr) == KVSTRATA_OK);
    return info.matched_tokens;
  };
  const uint32_t stored = 65'536;
  Sequence sequence;
  for (uint64_t i = 0; i < plain.size(); ++i) {
    const SequenceKey key{5, 0, std::string(reinterpret_cast<const char*>(&stored), sizeof stored)};
    sequence.Append(plain.token(i), i == 5 ? &key : nullptr);
  }
  world.StoreSequence(sequence);
  for (uint32_t digest = 0; digest < stored; ++digest) REQUIRE(look_up(digest) == 0);
  CHECK(look_up(stored) == 32);
}

TEST_CASE("a dropped namespace is empty, at once and after the next open, and its handle goes on", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 100);
  world.StoreSequence(stored);
  auto before = Sized<kvstrata_namespace_info>();
  REQUIRE(kvstrata_namespace_get_info(world.space.get(), &before, nullptr) == KVSTRATA_OK);
  auto info = Sized<kvstrata_match_info>();
  MatchHandle match = world.LookUp(Longer(stored), &info);
  REQUIRE(info.usable_tokens == 100);
  REQUIRE(kvstrata_namespace_drop(world.space.get(), nullptr) == KVSTRATA_OK);
  CHECK(Matched(world, stored) == 0);
  // The open match reads as a miss.
  const auto engine = world.Engine();
  PlanHandle plan;
  const kvstrata_status created = kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr);
  if (created == KVSTRATA_OK) {
    auto result = Sized<kvstrata_plan_result>();
    RestoreOptions restore;
    restore.expect_faults = true;
    const std::string fault = engine->Restore(match.get(), Longer(stored), restore, &result);
    INFO(fault);
    REQUIRE(fault.empty());
    CHECK(result.usable_tokens == 0);
    CHECK(result.state == KVSTRATA_PLAN_SHORTENED);
  }
  auto after = Sized<kvstrata_namespace_info>();
  REQUIRE(kvstrata_namespace_get_info(world.space.get(), &after, nullptr) == KVSTRATA_OK);
  CHECK(std::memcmp(before.id, after.id, sizeof before.id) != 0);  // a life is never used again
  CHECK(after.blocks + after.snapshots == 0);
  plan.reset();
  match.reset();
  const Sequence other = RandomSequence(2, 100);
  world.StoreSequence(other);
  CHECK(Matched(world, other) == 96);
  world.Close();
  world.Open();
  CHECK(Matched(world, stored) == 0);
  CHECK(Matched(world, other) == 96);
}

TEST_CASE("a namespace can be dropped from a store that is full to the last byte", "[capi]") {
  World world;
  world.options.capacity_bytes = 120 << 10;
  world.options.io_timeout_ms = 2000;
  world.Open();
  const Sequence stored = RandomSequence(1, 300);
  world.StoreSequence(stored);
  for (uint64_t i = 2; i < 6; ++i) world.StoreSequence(RandomSequence(i, 300));
  // No room, not even for the namespace's own record beside itself. What a close writes down of uses is among it.
  world.Close();
  world.Open();
  const uint64_t held = world.Stats().held_bytes;
  world.Close();
  world.options.capacity_bytes = held;
  world.Open();
  REQUIRE(world.Stats().held_bytes == held);
  CHECK(kvstrata_namespace_drop(world.space.get(), nullptr) == KVSTRATA_OK);
  CHECK(world.Stats().held_blocks == 0);
  CHECK(Matched(world, stored) == 0);
}

}  // namespace kvstrata::test
