// SPDX-License-Identifier: Apache-2.0
// NULLs, values out of range, the field that an error names, and outputs that stay untouched on failure.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

template <typename T>
T* Canary() {
  return reinterpret_cast<T*>(uintptr_t{0x1234});
}

// What a failing call must do: return `status`, name `field`.
void CheckFailure(kvstrata_status got, kvstrata_status wanted, const Error& error, const std::string& field) {
  CAPTURE(kvstrata_status_name(got), error.field, error.message);
  CHECK(got == wanted);
  CHECK(error.code == wanted);
  CHECK(std::string(error.field).find(field) != std::string::npos);
  CHECK(error.message[0] != '\0');
}

}  // namespace

TEST_CASE("statuses have names", "[capi]") {
  CHECK(std::string(kvstrata_status_name(KVSTRATA_OK)) == "KVSTRATA_OK");
  CHECK(std::string(kvstrata_status_name(KVSTRATA_E_IO)) == "KVSTRATA_E_IO");
  CHECK(std::string(kvstrata_status_name(KVSTRATA_E_FORKED)) == "KVSTRATA_E_FORKED");
  CHECK(std::string(kvstrata_status_name(11)) == "KVSTRATA_E_?");
  CHECK(std::string(kvstrata_status_name(-1)) == "KVSTRATA_E_?");
  CHECK(kvstrata_abi_version() == KVSTRATA_ABI_VERSION);
  CHECK(kvstrata_format_version() == KVSTRATA_FORMAT_VERSION);
  CHECK(std::string(kvstrata_version_string()) == "0.1.0");
}

TEST_CASE("destroying nothing does nothing", "[capi]") {
  kvstrata_cache_destroy(nullptr);
  kvstrata_layout_destroy(nullptr);
  kvstrata_namespace_destroy(nullptr);
  kvstrata_match_destroy(nullptr);
  kvstrata_plan_destroy(nullptr);
  kvstrata_writer_destroy(nullptr);
  kvstrata_plan_cancel(nullptr);
  CHECK(kvstrata_plan_segment_count(nullptr) == 0);
}

TEST_CASE("NULL is refused wherever something is needed, and outputs stay as they were", "[capi]") {
  World world;
  world.Open();
  const Sequence stored = RandomSequence(1, 70);
  world.StoreSequence(stored);
  Sequence sequence = stored;
  auto info = Sized<kvstrata_match_info>();
  const MatchHandle match = world.LookUp(Longer(stored), &info);
  const kvstrata_status invalid = KVSTRATA_E_INVALID_ARGUMENT;

  auto* cache = Canary<kvstrata_cache>();
  CHECK(kvstrata_cache_open(nullptr, &cache, nullptr) == invalid);
  CHECK(kvstrata_cache_open(&world.options, nullptr, nullptr) == invalid);
  CHECK(cache == Canary<kvstrata_cache>());
  CHECK(kvstrata_cache_close(nullptr, 0, nullptr, nullptr) == invalid);
  CHECK(kvstrata_cache_stats(nullptr, nullptr, nullptr) == invalid);
  uint64_t number = 77;
  CHECK(kvstrata_cache_events(nullptr, 1, nullptr, 0, 0, &number, &number, nullptr) == invalid);
  CHECK(kvstrata_cache_events(world.cache.get(), 1, nullptr, 0, 0, nullptr, &number, nullptr) == invalid);
  CHECK(kvstrata_cache_events(world.cache.get(), 1, nullptr, 3, 0, &number, &number, nullptr) == invalid);
  CHECK(kvstrata_cache_verify(nullptr, nullptr, nullptr, nullptr, nullptr) == invalid);
  CHECK(kvstrata_cache_trim(nullptr, 0, &number, nullptr) == invalid);
  CHECK(kvstrata_cache_sync(nullptr, nullptr) == invalid);
  CHECK(kvstrata_cache_purge_foreign(nullptr, &number, nullptr) == invalid);
  CHECK(number == 77);

  auto* space = Canary<kvstrata_namespace>();
  const auto names = world.identity.Options(world.kind.layout->handle.get());
  CHECK(kvstrata_namespace_open(nullptr, &names, &space, nullptr) == invalid);
  CHECK(kvstrata_namespace_open(world.cache.get(), nullptr, &space, nullptr) == invalid);
  CHECK(kvstrata_namespace_open(world.cache.get(), &names, nullptr, nullptr) == invalid);
  CHECK(kvstrata_namespace_drop(nullptr, nullptr) == invalid);
  CHECK(kvstrata_namespace_get_info(nullptr, nullptr, nullptr) == invalid);
  CHECK(space == Canary<kvstrata_namespace>());

  auto* found = Canary<kvstrata_match>();
  CHECK(kvstrata_lookup(nullptr, sequence.All(), nullptr, &found, nullptr) == invalid);
  CHECK(kvstrata_lookup(world.space.get(), nullptr, nullptr, &found, nullptr) == invalid);
  CHECK(kvstrata_lookup(world.space.get(), sequence.All(), nullptr, nullptr, nullptr) == invalid);
  CHECK(found == Canary<kvstrata_match>());
  CHECK(kvstrata_match_get_info(nullptr, &info, nullptr) == invalid);
  CHECK(kvstrata_match_renew(nullptr, 0, nullptr) == invalid);
  CHECK(kvstrata_match_limit(nullptr, 0, nullptr) == invalid);
  CHECK(kvstrata_match_agree(nullptr, 1, &number, nullptr) == invalid);
  kvstrata_match* const none[] = {nullptr};
  CHECK(kvstrata_match_agree(none, 1, &number, nullptr) == invalid);
  kvstrata_match* const one[] = {match.get()};
  CHECK(kvstrata_match_agree(one, 1, nullptr, nullptr) == invalid);
  CHECK(kvstrata_match_agree(one, 65537, &number, nullptr) == invalid);  // before a second one is looked for
  CHECK(kvstrata_match_first_difference(nullptr, &number, nullptr) == invalid);
  CHECK(kvstrata_match_first_difference(match.get(), nullptr, nullptr) == invalid);

  auto* plan = Canary<kvstrata_plan>();
  CHECK(kvstrata_plan_create(nullptr, nullptr, &plan, nullptr) == invalid);
  CHECK(kvstrata_plan_create(match.get(), nullptr, nullptr, nullptr) == invalid);
  CHECK(plan == Canary<kvstrata_plan>());
  CHECK(kvstrata_plan_start(nullptr, nullptr, 0, 0, nullptr) == invalid);
  CHECK(kvstrata_plan_poll(nullptr, nullptr, nullptr) == invalid);
  CHECK(kvstrata_plan_wait(nullptr, 0, nullptr, nullptr) == invalid);
  CHECK(kvstrata_plan_wait_layers(nullptr, 0, 0, nullptr, nullptr) == invalid);

  auto* writer = Canary<kvstrata_writer>();
  CHECK(kvstrata_writer_open(nullptr, nullptr, nullptr, &writer, nullptr) == invalid);
  CHECK(kvstrata_writer_open(world.space.get(), nullptr, nullptr, nullptr, nullptr) == invalid);
  CHECK(kvstrata_writer_fork(nullptr, &writer, nullptr) == invalid);
  CHECK(writer == Canary<kvstrata_writer>());
  CHECK(kvstrata_writer_set_source(nullptr, nullptr, nullptr) == invalid);
  CHECK(kvstrata_writer_advance(nullptr, nullptr, 0, nullptr) == invalid);
  CHECK(kvstrata_writer_snapshot(nullptr, nullptr) == invalid);
  CHECK(kvstrata_writer_snapshot_positions(nullptr, sequence.All(), nullptr, 0, &number, nullptr) == invalid);
  CHECK(kvstrata_writer_truncate(nullptr, 0, nullptr) == invalid);
  CHECK(kvstrata_writer_commit(nullptr, 0, 0, nullptr, nullptr) == invalid);

  auto* layout = Canary<kvstrata_layout>();
  CHECK(kvstrata_layout_create(nullptr, &layout, nullptr) == invalid);
  CHECK(kvstrata_layout_from_preset(nullptr, nullptr, &layout, nullptr) == invalid);
  CHECK(kvstrata_layout_from_config(nullptr, 10, nullptr, &layout, nullptr) == invalid);
  CHECK(kvstrata_layout_from_text(nullptr, 10, &layout, nullptr) == invalid);
  CHECK(kvstrata_layout_opaque(0, nullptr, nullptr) == invalid);
  CHECK(kvstrata_layout_get_info(nullptr, nullptr, nullptr) == invalid);
  CHECK(kvstrata_layout_snapshot_bytes(nullptr, 0, &number, nullptr) == invalid);
  CHECK(layout == Canary<kvstrata_layout>());
  CHECK(number == 77);
}

TEST_CASE("an error names the field at fault", "[capi]") {
  World world;
  Error error;
  CacheHandle cache;
  kvstrata_cache_options options = world.options;
  options.capacity_bytes = 0;
  CheckFailure(kvstrata_cache_open(&options, Out(cache), &error), KVSTRATA_E_INVALID_ARGUMENT, error, "capacity_bytes");
  options = world.options;
  options.path = "/somewhere";
  CheckFailure(kvstrata_cache_open(&options, Out(cache), &error), KVSTRATA_E_INVALID_ARGUMENT, error, "path");
  options = world.options;
  options.io_threads = 65;
  CheckFailure(kvstrata_cache_open(&options, Out(cache), &error), KVSTRATA_E_INVALID_ARGUMENT, error, "io_threads");
  options = world.options;
  options.eviction_policy = KVSTRATA_EVICT_FREQUENCY;
  options.ghost_bytes = (uint64_t{1} << 30) + 1;
  CheckFailure(kvstrata_cache_open(&options, Out(cache), &error), KVSTRATA_E_INVALID_ARGUMENT, error, "ghost_bytes");
  options = world.options;
  options.flags = 0x80;
  CheckFailure(kvstrata_cache_open(&options, Out(cache), &error), KVSTRATA_E_INVALID_ARGUMENT, error, "flags");
  CHECK(cache == nullptr);

  world.Open();
  NamespaceHandle space;
  auto names = world.identity.Options(world.kind.layout->handle.get());
  names.layout = nullptr;
  CheckFailure(kvstrata_namespace_open(world.cache.get(), &names, Out(space), &error), KVSTRATA_E_INVALID_ARGUMENT,
               error, "layout");
  names = world.identity.Options(world.kind.layout->handle.get());
  names.snapshot_policy = KVSTRATA_SNAPSHOT_NEVER | KVSTRATA_SNAPSHOT_PROMPT_END;
  CheckFailure(kvstrata_namespace_open(world.cache.get(), &names, Out(space), &error), KVSTRATA_E_INVALID_ARGUMENT,
               error, "snapshot_policy");
  names.snapshot_policy = KVSTRATA_SNAPSHOT_EVERY_N;
  CheckFailure(kvstrata_namespace_open(world.cache.get(), &names, Out(space), &error), KVSTRATA_E_INVALID_ARGUMENT,
               error, "snapshot_every_tokens");
  names = world.identity.Options(world.kind.layout->handle.get());
  names.compress = KVSTRATA_COMPRESS_ALL + 1;
  CheckFailure(kvstrata_namespace_open(world.cache.get(), &names, Out(space), &error), KVSTRATA_E_INVALID_ARGUMENT,
               error, "compress");
  names.compress = 0;
  for (const uint32_t pack : {32u, 1u | 2u, 1u | 4u, 8u | 16u}) {
    names.pack = pack;
    CheckFailure(kvstrata_namespace_open(world.cache.get(), &names, Out(space), &error), KVSTRATA_E_INVALID_ARGUMENT,
                 error, "pack");
  }

  MatchHandle match;
  Sequence sequence = RandomSequence(1, 40);
  auto lookup = Sized<kvstrata_lookup_options>();
  lookup.allowed_modes = 1u << 9;
  CheckFailure(kvstrata_lookup(world.space.get(), sequence.All(), &lookup, Out(match), &error),
               KVSTRATA_E_INVALID_ARGUMENT, error, "allowed_modes");
  lookup = Sized<kvstrata_lookup_options>();
  lookup.prefill_tokens_per_second = -1;
  CheckFailure(kvstrata_lookup(world.space.get(), sequence.All(), &lookup, Out(match), &error),
               KVSTRATA_E_INVALID_ARGUMENT, error, "prefill_tokens_per_second");
  kvstrata_tokens tokens = *sequence.All();
  tokens.ids = nullptr;
  CheckFailure(kvstrata_lookup(world.space.get(), &tokens, nullptr, Out(match), &error), KVSTRATA_E_INVALID_ARGUMENT,
               error, "ids");
}

TEST_CASE("a broken extra key is an error, never no key", "[capi]") {
  World world;
  world.Open();
  Sequence sequence = RandomSequence(1, 40);
  const auto look_up = [&](const std::vector<kvstrata_extra_key>& keys, Error* error) {
    kvstrata_tokens tokens = *sequence.All();
    tokens.extra_keys = keys.data();
    tokens.extra_key_count = keys.size();
    MatchHandle match;
    return kvstrata_lookup(world.space.get(), &tokens, nullptr, Out(match), error);
  };
  auto key = Sized<kvstrata_extra_key>();
  key.position = 3;
  key.bytes = "digest";
  key.size = 6;
  Error error;
  CHECK(look_up({key}, nullptr) == KVSTRATA_OK);
  kvstrata_extra_key broken = key;
  broken.bytes = nullptr;
  CheckFailure(look_up({broken}, &error), KVSTRATA_E_INVALID_ARGUMENT, error, "bytes");
  broken = key;
  broken.size = 1025;
  CheckFailure(look_up({broken}, &error), KVSTRATA_E_INVALID_ARGUMENT, error, "size");
  broken = key;
  broken.position = 40;  // behind the last token
  CheckFailure(look_up({broken}, &error), KVSTRATA_E_INVALID_ARGUMENT, error, "extra_keys[0]");
  broken.position = 2;  // not ascending
  CheckFailure(look_up({key, broken}, &error), KVSTRATA_E_INVALID_ARGUMENT, error, "extra_keys[1]");
}

TEST_CASE("a buffer is checked before anything is touched", "[capi]") {
  World world;
  world.Open();
  WriterHandle writer;
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  const uint32_t csa = 1;  // 584 bytes per row
  std::vector<std::byte> rows(16 * 584);
  const int32_t ids[] = {0, 1, 2, -2};
  auto buffer = Sized<kvstrata_buffer>();
  buffer.stream = csa;
  buffer.base = rows.data();
  buffer.size_bytes = rows.size();
  Error error;
  CHECK(kvstrata_writer_set_source(writer.get(), &buffer, nullptr) == KVSTRATA_OK);
  const auto broken = [&](const char* field, const auto& change) {
    kvstrata_buffer copy = buffer;
    change(copy);
    CheckFailure(kvstrata_writer_set_source(writer.get(), &copy, &error), KVSTRATA_E_INVALID_ARGUMENT, error, field);
  };
  broken("stream", [](kvstrata_buffer& b) { b.stream = 99; });
  broken("memory", [](kvstrata_buffer& b) { b.memory = 7; });
  broken("form", [](kvstrata_buffer& b) { b.form = 9; });
  broken("base", [](kvstrata_buffer& b) { b.base = nullptr; });
  broken("row_stride", [](kvstrata_buffer& b) { b.row_stride = 583; });
  broken("capacity_rows", [](kvstrata_buffer& b) { b.form = KVSTRATA_FORM_RING; });
  broken("rows_per_page", [&](kvstrata_buffer& b) {
    b.form = KVSTRATA_FORM_PAGES;
    b.page_ids = ids;
    b.page_count = 3;
    b.page_id_bytes = 4;
  });
  broken("page_id_bytes", [&](kvstrata_buffer& b) {
    b.form = KVSTRATA_FORM_SLOTS;
    b.page_ids = ids;
    b.page_count = 3;
    b.page_id_bytes = 2;
  });
  broken("page_ids", [&](kvstrata_buffer& b) {
    b.form = KVSTRATA_FORM_SLOTS;
    b.page_ids = ids;
    b.page_count = 4;
    b.page_id_bytes = 4;
  });
  auto column = Sized<kvstrata_column>();
  column.bytes = 583;
  column.stride = 584;
  broken("columns", [&](kvstrata_buffer& b) {
    b.columns = &column;
    b.column_count = 1;
  });
  kvstrata_buffer device = buffer;
  device.memory = KVSTRATA_MEMORY_DEVICE;
  CheckFailure(kvstrata_writer_set_source(writer.get(), &device, &error), KVSTRATA_E_UNSUPPORTED, error, "memory");
}

TEST_CASE("a writer checks lengths", "[capi]") {
  World world;
  world.Open();
  WriterHandle writer;
  auto options = Sized<kvstrata_writer_options>();
  options.start_tokens = 5;
  Error error;
  CheckFailure(kvstrata_writer_open(world.space.get(), nullptr, &options, Out(writer), &error),
               KVSTRATA_E_INVALID_ARGUMENT, error, "start_tokens");
  REQUIRE(kvstrata_writer_open(world.space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
  Sequence sequence = RandomSequence(1, 10);
  CheckFailure(kvstrata_writer_advance(writer.get(), sequence.All(), 11, &error), KVSTRATA_E_INVALID_ARGUMENT, error,
               "computed_length");
  CHECK(kvstrata_writer_advance(writer.get(), sequence.All(), 8, nullptr) == KVSTRATA_OK);
  CheckFailure(kvstrata_writer_advance(writer.get(), nullptr, 7, &error), KVSTRATA_E_INVALID_ARGUMENT, error,
               "computed_length");
  CheckFailure(kvstrata_writer_truncate(writer.get(), 11, &error), KVSTRATA_E_INVALID_ARGUMENT, error, "length");
  CheckFailure(kvstrata_writer_commit(writer.get(), 0x80, 0, nullptr, &error), KVSTRATA_E_INVALID_ARGUMENT, error,
               "flags");
  REQUIRE(kvstrata_writer_truncate(writer.get(), 0, nullptr) == KVSTRATA_OK);
  CheckFailure(kvstrata_writer_snapshot(writer.get(), &error), KVSTRATA_E_INVALID_STATE, error, "computed_length");
}

}  // namespace kvstrata::test
