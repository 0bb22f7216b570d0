// SPDX-License-Identifier: Apache-2.0
// The size-first rules of every struct that crosses the C ABI: smaller, larger, garbage behind, absurd sizes; in and
// out.
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

// Calls `use` with `value` in memory of all sizes that a caller may come with.
template <typename T>
void CheckInput(const char* name, const T& value, const std::function<kvstrata_status(const T*)>& use) {
  INFO(name);
  std::vector<std::byte> memory(sizeof(T) + 256, std::byte{0});
  auto* given = reinterpret_cast<T*>(memory.data());
  std::memcpy(memory.data(), &value, sizeof(T));
  const auto set_size = [&](uint32_t size) { std::memcpy(memory.data(), &size, sizeof size); };
  set_size(sizeof(T));
  CHECK(use(given) == KVSTRATA_OK);
  set_size(sizeof(T) + 64);  // newer, but it says nothing that we do not know
  CHECK(use(given) == KVSTRATA_OK);
  memory[sizeof(T) + 63] = std::byte{1};
  CHECK(use(given) == KVSTRATA_E_STRUCT_TOO_NEW);
  set_size(sizeof(T));  // what lies behind is none of our business then
  CHECK(use(given) == KVSTRATA_OK);
  for (const uint32_t absurd : {0u, 1u, 3u, 1u << 20, UINT32_MAX}) {
    INFO(absurd);
    set_size(absurd);
    CHECK(use(given) == KVSTRATA_E_INVALID_ARGUMENT);
  }
  // Half a member is none, and half a pointer would be followed.
  for (uint32_t cut = 5; cut < sizeof(T); ++cut) {
    if (cut % alignof(T) == 0) continue;
    INFO(cut);
    set_size(cut);
    CHECK(use(given) == KVSTRATA_E_INVALID_ARGUMENT);
  }
}

// An older caller's struct ends at `size`; garbage behind must not be read.
template <typename T>
void CheckOlder(const char* name, const T& value, size_t size, const std::function<kvstrata_status(const T*)>& use) {
  INFO(name);
  std::vector<std::byte> memory(sizeof(T), std::byte{0xee});
  std::memcpy(memory.data(), &value, size);
  const auto given = static_cast<uint32_t>(size);
  std::memcpy(memory.data(), &given, sizeof given);
  CHECK(use(reinterpret_cast<const T*>(memory.data())) == KVSTRATA_OK);
}

// Output: the smaller of both sizes is written, struct_size kept, the surplus zeroed, nothing behind touched.
template <typename T>
void CheckOutput(const char* name, const std::function<kvstrata_status(T*)>& fill) {
  INFO(name);
  T whole = Sized<T>();
  REQUIRE(fill(&whole) == KVSTRATA_OK);
  for (const size_t size : {sizeof(T), sizeof(T) + 40, sizeof(T) - 8, size_t{8}, size_t{4}}) {
    INFO(size);
    std::vector<std::byte> memory(sizeof(T) + 64, std::byte{0xcc});
    const auto given = static_cast<uint32_t>(size);
    std::memcpy(memory.data(), &given, sizeof given);
    REQUIRE(fill(reinterpret_cast<T*>(memory.data())) == KVSTRATA_OK);
    uint32_t kept = 0;
    std::memcpy(&kept, memory.data(), sizeof kept);
    CHECK(kept == given);
    const size_t common = std::min(size, sizeof(T));
    CHECK(std::memcmp(memory.data() + 4, reinterpret_cast<const std::byte*>(&whole) + 4, common - 4) == 0);
    for (size_t i = common; i < size; ++i) REQUIRE(memory[i] == std::byte{0});
    for (size_t i = size; i < memory.size(); ++i) REQUIRE(memory[i] == std::byte{0xcc});
  }
  for (const uint32_t absurd : {0u, 3u, 1u << 20}) {
    T out = Sized<T>();
    out.struct_size = absurd;
    T before = out;
    CHECK(fill(&out) == KVSTRATA_E_INVALID_ARGUMENT);
    CHECK(std::memcmp(&out, &before, sizeof(T)) == 0);
  }
  CHECK(fill(nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
}

// Calls `use` with an array of good elements, in every way that it may travel and may not. `older` is a size that
// an older caller's elements may have; 0: there is none.
template <typename T>
void CheckArray(const char* name, const std::vector<T>& good, size_t older,
                const std::function<kvstrata_status(const T*, uint64_t stride)>& use) {
  INFO(name);
  const auto call = [&](uint64_t step, uint64_t stride, uint32_t usual_size, uint32_t last_size, bool garbage) {
    // Heap memory that ends with the last element: a sanitizer sees any byte read beyond.
    std::vector<std::byte> memory(good.size() * step, std::byte{0});
    for (size_t i = 0; i < good.size(); ++i) {
      const uint32_t size = i + 1 < good.size() ? usual_size : last_size;
      std::memcpy(memory.data() + i * step, &good[i], std::min<size_t>(step, sizeof(T)));
      std::memcpy(memory.data() + i * step, &size, sizeof size);
    }
    if (garbage) memory.back() = std::byte{1};
    return use(reinterpret_cast<const T*>(memory.data()), stride);
  };
  const uint32_t size = sizeof(T);
  CHECK(call(size, size, size, size, false) == KVSTRATA_OK);
  CHECK(call(size, 0, size, size, false) == KVSTRATA_OK);
  CHECK(call(size + 64, size + 64, size, size, true) == KVSTRATA_OK);  // between elements anything may lie
  CHECK(call(size + 64, size + 64, size + 64, size + 64, false) == KVSTRATA_OK);
  CHECK(call(size + 64, 0, size + 64, size + 64, false) == KVSTRATA_OK);
  CHECK(call(size + 64, size + 64, size, size + 64, true) == KVSTRATA_E_STRUCT_TOO_NEW);
  if (older != 0) {
    const auto old = static_cast<uint32_t>(older);
    CHECK(call(older, 0, old, old, false) == KVSTRATA_OK);
    CHECK(call(older, older, old, old, false) == KVSTRATA_OK);
  }
  // An element may not reach into the next one, nor beyond the last.
  CHECK(call(size, size, size + 8, size, false) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(call(size, size, size, size + 8, false) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(call(size, 0, size, size + 8, false) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(call(size, size - 8, size, size, false) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(call(size, size, size, 0, false) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(call(size, 0, 0, size, false) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(call(size, size, size, UINT32_MAX, false) == KVSTRATA_E_INVALID_ARGUMENT);
  for (const uint64_t absurd : {uint64_t{1}, uint64_t{3}, uint64_t{1} << 20, UINT64_MAX}) {
    CHECK(call(size, absurd, size, size, false) == KVSTRATA_E_INVALID_ARGUMENT);
  }
}

}  // namespace

TEST_CASE("input structs of caches, namespaces and layouts follow the size rule", "[capi]") {
  World world;
  const auto open = [&](const kvstrata_cache_options* options) {
    CacheHandle cache;
    return kvstrata_cache_open(options, Out(cache), nullptr);
  };
  auto options = Sized<kvstrata_cache_options>();
  options.capacity_bytes = 1 << 20;
  CheckInput<kvstrata_cache_options>("cache_options", options, open);
  CheckOlder<kvstrata_cache_options>("cache_options", options, offsetof(kvstrata_cache_options, snapshot_bytes), open);

  world.Open();
  const auto names = world.identity.Options(world.kind.layout->handle.get());
  const auto open_space = [&](const kvstrata_namespace_options* given) {
    NamespaceHandle space;
    return kvstrata_namespace_open(world.cache.get(), given, Out(space), nullptr);
  };
  CheckInput<kvstrata_namespace_options>("namespace_options", names, open_space);
  CheckOlder<kvstrata_namespace_options>("namespace_options", names,
                                         offsetof(kvstrata_namespace_options, snapshot_policy), open_space);
  CheckOlder<kvstrata_namespace_options>("namespace_options", names, offsetof(kvstrata_namespace_options, compress),
                                         open_space);
  const auto with_fields = [&](const kvstrata_identity_field* field) {
    kvstrata_namespace_options one = names;
    std::vector<std::byte> fields(one.field_count * 512);
    for (uint64_t i = 0; i < one.field_count; ++i) {
      std::memcpy(fields.data() + i * 512, &one.fields[i], sizeof one.fields[i]);
    }
    const uint64_t size = field->struct_size > 512 ? 4 : field->struct_size;
    std::memcpy(fields.data(), field, std::max<uint64_t>(size, 4));
    one.fields = reinterpret_cast<const kvstrata_identity_field*>(fields.data());
    one.field_stride = 512;
    return open_space(&one);
  };
  CheckInput<kvstrata_identity_field>("identity_field", names.fields[0], with_fields);

  const auto preset = [](const kvstrata_preset_options* given) {
    LayoutHandle layout;
    return kvstrata_layout_from_preset("deepseek-v4-flash", given, Out(layout), nullptr);
  };
  CheckInput<kvstrata_preset_options>("preset_options", Sized<kvstrata_preset_options>(), preset);
}

TEST_CASE("input structs of layouts and their streams follow the size rule", "[capi]") {
  auto stream = Sized<kvstrata_stream>();
  stream.kind = KVSTRATA_STREAM_ROWS;
  stream.role = KVSTRATA_ROLE_KEY;
  stream.ratio = 1;
  stream.row_bytes = 64;
  stream.packing = KVSTRATA_PACKING_RAW;
  auto desc = Sized<kvstrata_layout_desc>();
  desc.block_tokens = 16;
  desc.streams = &stream;
  desc.stream_count = 1;
  const auto create = [](const kvstrata_layout_desc* given) {
    LayoutHandle layout;
    return kvstrata_layout_create(given, Out(layout), nullptr);
  };
  CheckInput<kvstrata_layout_desc>("layout_desc", desc, create);
  CheckOlder<kvstrata_layout_desc>("layout_desc", desc, offsetof(kvstrata_layout_desc, stream_stride), create);
  const auto with_stream = [&](const kvstrata_stream* given) {
    kvstrata_layout_desc one = desc;
    one.streams = given;
    one.stream_stride = 1024;
    return create(&one);
  };
  std::vector<std::byte> room(2048);
  CheckInput<kvstrata_stream>("stream", stream, [&](const kvstrata_stream* given) {
    std::memcpy(room.data(), given, sizeof(kvstrata_stream) + 256);
    return with_stream(reinterpret_cast<const kvstrata_stream*>(room.data()));
  });
}

TEST_CASE("input structs of lookups, restores and writers follow the size rule", "[capi]") {
  World world;
  world.Open();
  Sequence sequence = RandomSequence(1, 100);
  world.StoreSequence(sequence);
  const auto look_up = [&](const kvstrata_tokens* tokens, const kvstrata_lookup_options* options) {
    MatchHandle match;
    return kvstrata_lookup(world.space.get(), tokens, options, Out(match), nullptr);
  };
  CheckInput<kvstrata_tokens>("tokens", *sequence.All(),
                              [&](const kvstrata_tokens* given) { return look_up(given, nullptr); });
  CheckOlder<kvstrata_tokens>("tokens", *sequence.All(), offsetof(kvstrata_tokens, extra_keys),
                              [&](const kvstrata_tokens* given) { return look_up(given, nullptr); });
  auto lookup = Sized<kvstrata_lookup_options>();
  lookup.min_gain_tokens = 3;
  CheckInput<kvstrata_lookup_options>(
      "lookup_options", lookup, [&](const kvstrata_lookup_options* given) { return look_up(sequence.All(), given); });

  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(sequence), &info);
  CheckInput<kvstrata_plan_options>("plan_options", Sized<kvstrata_plan_options>(),
                                    [&](const kvstrata_plan_options* given) {
                                      PlanHandle plan;
                                      return kvstrata_plan_create(match.get(), given, Out(plan), nullptr);
                                    });
  CheckInput<kvstrata_writer_options>(
      "writer_options", Sized<kvstrata_writer_options>(), [&](const kvstrata_writer_options* given) {
        WriterHandle writer;
        return kvstrata_writer_open(world.space.get(), nullptr, given, Out(writer), nullptr);
      });
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  std::vector<std::byte> rows(64 * 584);
  auto buffer = Sized<kvstrata_buffer>();
  buffer.base = rows.data();
  buffer.size_bytes = rows.size();
  const auto set_source = [&](const kvstrata_buffer* given) {
    return kvstrata_writer_set_source(writer.get(), given, nullptr);
  };
  CheckInput<kvstrata_buffer>("buffer", buffer, set_source);
  CheckOlder<kvstrata_buffer>("buffer", buffer, offsetof(kvstrata_buffer, first_row), set_source);
  auto column = Sized<kvstrata_column>();
  column.bytes = 584;
  column.stride = 584;
  CheckInput<kvstrata_column>("column", column, [&](const kvstrata_column* given) {
    kvstrata_buffer one = buffer;
    one.columns = given;
    one.column_count = 1;
    one.column_stride = sizeof(kvstrata_column) + 64;
    return set_source(&one);
  });
  auto key = Sized<kvstrata_extra_key>();
  CheckInput<kvstrata_extra_key>("extra_key", key, [&](const kvstrata_extra_key* given) {
    kvstrata_tokens tokens = *sequence.All();
    tokens.extra_keys = given;
    tokens.extra_key_count = 1;
    tokens.extra_key_stride = sizeof(kvstrata_extra_key) + 64;
    return look_up(&tokens, nullptr);
  });
}

TEST_CASE("tables of storage, device and allocator follow the size rule", "[capi]") {
  const auto open = [](const kvstrata_storage* storage, const kvstrata_device* device,
                       const kvstrata_allocator* allocator) {
    auto options = Sized<kvstrata_cache_options>();
    options.capacity_bytes = 1 << 20;
    options.storage = storage;
    options.device = device;
    options.allocator = allocator;
    CacheHandle cache;
    return kvstrata_cache_open(&options, Out(cache), nullptr);
  };
  World world;
  CheckInput<kvstrata_storage>("storage", world.table,
                               [&](const kvstrata_storage* given) { return open(given, nullptr, nullptr); });
  kvstrata_storage older = world.table;
  older.abi_version = KVSTRATA_ABI_VERSION + 1;
  CHECK(open(&older, nullptr, nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
}

TEST_CASE("output structs follow the size rule", "[capi]") {
  World world;
  world.Open();
  const Sequence sequence = RandomSequence(1, 100);
  world.StoreSequence(sequence);
  const kvstrata_layout* layout = world.kind.layout->handle.get();
  CheckOutput<kvstrata_layout_info>(
      "layout_info", [&](kvstrata_layout_info* out) { return kvstrata_layout_get_info(layout, out, nullptr); });
  CheckOutput<kvstrata_stream>(
      "stream", [&](kvstrata_stream* out) { return kvstrata_layout_get_stream(layout, 1, out, nullptr); });
  CheckOutput<kvstrata_stats>(
      "stats", [&](kvstrata_stats* out) { return kvstrata_cache_stats(world.cache.get(), out, nullptr); });
  CheckOutput<kvstrata_namespace_info>("namespace_info", [&](kvstrata_namespace_info* out) {
    return kvstrata_namespace_get_info(world.space.get(), out, nullptr);
  });
  CheckOutput<kvstrata_verify_info>("verify_info", [&](kvstrata_verify_info* out) {
    return kvstrata_cache_verify(world.cache.get(), nullptr, nullptr, out, nullptr);
  });
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(sequence), &info);
  CheckOutput<kvstrata_match_info>(
      "match_info", [&](kvstrata_match_info* out) { return kvstrata_match_get_info(match.get(), out, nullptr); });
  PlanHandle plan;
  REQUIRE(kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
  CheckOutput<kvstrata_plan_segment>("plan_segment", [&](kvstrata_plan_segment* out) {
    return kvstrata_plan_get_segment(plan.get(), 0, out, nullptr);
  });
  CheckOutput<kvstrata_plan_result>(
      "plan_result", [&](kvstrata_plan_result* out) { return kvstrata_plan_poll(plan.get(), out, nullptr); });
  CheckOutput<kvstrata_event>("event", [&](kvstrata_event* out) {
    uint64_t count = 0;
    uint64_t next = 0;
    return kvstrata_cache_events(world.cache.get(), 1, out, 1, 512, &count, &next, nullptr);
  });
}

TEST_CASE("arrays of streams, identity fields and extra keys follow the stride rule", "[capi]") {
  auto stream = Sized<kvstrata_stream>();
  stream.kind = KVSTRATA_STREAM_ROWS;
  stream.role = KVSTRATA_ROLE_KEY;
  stream.ratio = 1;
  stream.row_bytes = 64;
  stream.packing = KVSTRATA_PACKING_RAW;
  kvstrata_stream value = stream;
  value.role = KVSTRATA_ROLE_VALUE;
  CheckArray<kvstrata_stream>("streams", {stream, value}, offsetof(kvstrata_stream, flags),
                              [](const kvstrata_stream* streams, uint64_t stride) {
                                auto desc = Sized<kvstrata_layout_desc>();
                                desc.block_tokens = 16;
                                desc.streams = streams;
                                desc.stream_count = 2;
                                desc.stream_stride = stride;
                                LayoutHandle layout;
                                return kvstrata_layout_create(&desc, Out(layout), nullptr);
                              });

  World world;
  world.Open();
  CheckArray<kvstrata_identity_field>(
      "fields", world.identity.Fields(), offsetof(kvstrata_identity_field, bytes),
      [&](const kvstrata_identity_field* fields, uint64_t stride) {
        kvstrata_namespace_options options = world.identity.Options(world.kind.layout->handle.get());
        options.fields = fields;
        options.field_stride = stride;
        NamespaceHandle space;
        return kvstrata_namespace_open(world.cache.get(), &options, Out(space), nullptr);
      });

  Sequence sequence = RandomSequence(1, 100);
  auto key = Sized<kvstrata_extra_key>();
  auto later = key;
  later.position = 1;
  CheckArray<kvstrata_extra_key>("extra_keys", {key, later}, offsetof(kvstrata_extra_key, bytes),
                                 [&](const kvstrata_extra_key* keys, uint64_t stride) {
                                   kvstrata_tokens tokens = *sequence.All();
                                   tokens.extra_keys = keys;
                                   tokens.extra_key_count = 2;
                                   tokens.extra_key_stride = stride;
                                   MatchHandle match;
                                   return kvstrata_lookup(world.space.get(), &tokens, nullptr, Out(match), nullptr);
                                 });
}

TEST_CASE("arrays of columns and destinations follow the stride rule", "[capi]") {
  World world;
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_gqa(1, 1, 32, 2, 64, Out(layout), nullptr) == KVSTRATA_OK);  // two streams, 64-byte rows
  world.kind.layout = ModelLayout::Read(std::move(layout));
  world.kind.geometry = [](const kvstrata_stream&, uint64_t, Rng&) { return Geometry{}; };
  world.Open();
  std::vector<std::byte> rows(128 * 64);
  auto buffer = Sized<kvstrata_buffer>();
  buffer.base = rows.data();
  buffer.size_bytes = rows.size();
  auto column = Sized<kvstrata_column>();
  column.bytes = 32;
  column.stride = 64;
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  CheckArray<kvstrata_column>("columns", {column, column}, 0, [&](const kvstrata_column* columns, uint64_t stride) {
    kvstrata_buffer source = buffer;
    source.columns = columns;
    source.column_count = 2;
    source.column_stride = stride;
    return kvstrata_writer_set_source(writer.get(), &source, nullptr);
  });

  const Sequence stored = RandomSequence(1, 100);
  world.StoreSequence(stored);
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(stored, &info);
  REQUIRE(info.usable_tokens == 64);
  std::vector<std::byte> values(rows.size());
  kvstrata_buffer other = buffer;
  other.stream = 1;
  other.base = values.data();
  CheckArray<kvstrata_buffer>("destinations", {buffer, other}, offsetof(kvstrata_buffer, row_stride),
                              [&](const kvstrata_buffer* destinations, uint64_t stride) {
                                PlanHandle plan;
                                REQUIRE(kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
                                return kvstrata_plan_start(plan.get(), destinations, 2, stride, nullptr);
                              });
}

TEST_CASE("an array of events follows the stride rule, and nothing behind it is written", "[capi]") {
  World world;
  world.Open();
  world.StoreSequence(RandomSequence(1, 600));
  const auto read = [&](uint64_t step, uint64_t stride, uint32_t first_size, uint32_t second_size) {
    std::vector<std::byte> memory(2 * step + 64, std::byte{0xcc});
    std::memcpy(memory.data(), &first_size, sizeof first_size);
    std::memcpy(memory.data() + step, &second_size, sizeof second_size);
    uint64_t count = 0, next = 0;
    const kvstrata_status status = kvstrata_cache_events(
        world.cache.get(), 1, reinterpret_cast<kvstrata_event*>(memory.data()), 2, stride, &count, &next, nullptr);
    for (size_t i = 2 * step; i < memory.size(); ++i) REQUIRE(memory[i] == std::byte{0xcc});
    if (status != KVSTRATA_OK) return status;
    REQUIRE(count == 2);
    uint64_t sequence = 0;
    std::memcpy(&sequence, memory.data() + step + offsetof(kvstrata_event, sequence), sizeof sequence);
    CHECK(sequence == 2);
    return status;
  };
  const uint32_t size = sizeof(kvstrata_event), older = offsetof(kvstrata_event, namespace_id);
  CHECK(read(size, size, size, size) == KVSTRATA_OK);
  CHECK(read(size, 0, size, size) == KVSTRATA_OK);
  CHECK(read(size + 64, size + 64, size, size) == KVSTRATA_OK);
  CHECK(read(size + 64, 0, size + 64, size + 64) == KVSTRATA_OK);
  CHECK(read(older, 0, older, older) == KVSTRATA_OK);
  CHECK(read(older, older, older, older) == KVSTRATA_OK);
  CHECK(read(size, size, size + 8, size) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(read(size, size, size, size + 8) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(read(size, 0, size, size + 8) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(read(size, size, size, 0) == KVSTRATA_E_INVALID_ARGUMENT);
  for (const uint64_t absurd : {uint64_t{1}, uint64_t{3}, uint64_t{1} << 20, UINT64_MAX}) {
    CHECK(read(size, absurd, size, size) == KVSTRATA_E_INVALID_ARGUMENT);
  }
}

TEST_CASE("an error struct follows the size rule and is optional", "[capi]") {
  kvstrata_cache* cache = nullptr;
  CHECK(kvstrata_cache_open(nullptr, &cache, nullptr) == KVSTRATA_E_INVALID_ARGUMENT);
  Error whole;
  REQUIRE(kvstrata_cache_open(nullptr, &cache, &whole) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(whole.code == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(std::string(whole.field) == "options");
  CHECK(std::string(whole.message) != "");
  for (const size_t size :
       {size_t{8}, sizeof(kvstrata_error) - 8, sizeof(kvstrata_error), sizeof(kvstrata_error) + 40}) {
    INFO(size);
    std::vector<std::byte> memory(sizeof(kvstrata_error) + 64, std::byte{0xcc});
    const auto given = static_cast<uint32_t>(size);
    std::memcpy(memory.data(), &given, sizeof given);
    auto* error = reinterpret_cast<kvstrata_error*>(memory.data());
    CHECK(kvstrata_cache_open(nullptr, &cache, error) == KVSTRATA_E_INVALID_ARGUMENT);
    CHECK(error->code == KVSTRATA_E_INVALID_ARGUMENT);
    CHECK(error->struct_size == given);
    for (size_t i = size; i < memory.size(); ++i) REQUIRE(memory[i] == std::byte{0xcc});
  }
  // On success it is left alone.
  Error untouched;
  untouched.code = 77;
  LayoutHandle layout;
  CHECK(kvstrata_layout_opaque(0, Out(layout), &untouched) == KVSTRATA_OK);
  CHECK(untouched.code == 77);
}

}  // namespace kvstrata::test
