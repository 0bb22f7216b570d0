// SPDX-License-Identifier: Apache-2.0
// The C++ API over the library: that each wrapper reaches its function, passes what it was given and hands back values
// and errors. What the functions do is tested elsewhere.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvstrata/kvstrata.hpp"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::errc;

// One rows stream of 8 bytes a token and a window of 4 rows of 8 bytes; blocks of 4 tokens.
kvstrata::layout_builder SmallLayout() {
  kvstrata::layout_builder b;
  b.block_tokens(4)
      .family("custom")
      .numeric_profile(kvstrata::profile::opaque)
      .replay(kvstrata::replay_mode::full, 4, 1)
      .rows(kvstrata::role::other, 0, 1, 8)
      .window(0, 4, 8);
  return b;
}

kvstrata::identity Who(const char* tenant) {
  kvstrata::identity out;
  out.set_number("model.weights", 42).set("tenant", tenant);
  return out;
}

kvstrata::cache OpenMemory() {
  kvstrata::cache_options options;
  options.capacity_bytes = 1 << 20;
  auto cache = kvstrata::cache::open(options);
  REQUIRE(cache);
  return std::move(cache).value();
}

// An engine whose row of token t is t, and whose window ring holds the last four rows.
struct Engine {
  std::vector<std::uint64_t> rows = std::vector<std::uint64_t>(64);
  std::vector<std::uint64_t> ring = std::vector<std::uint64_t>(4);

  void Run(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t t = from; t < to; ++t) rows[t] = ring[t % 4] = t + 1;
  }
  std::vector<kvstrata::buffer> Buffers() {
    return {kvstrata::buffer::linear(0, rows), kvstrata::buffer::ring(1, ring, 4)};
  }
};

std::vector<std::int32_t> Tokens(std::size_t count) {
  std::vector<std::int32_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(100 + i);
  return out;
}

// Stores the first `count` tokens with a snapshot at their end.
void Store(const kvstrata::name_space& in, std::size_t count) {
  Engine engine;
  engine.Run(0, count);
  auto writer = in.open_writer();
  REQUIRE(writer);
  REQUIRE(writer->set_sources(engine.Buffers()));
  REQUIRE(writer->advance(Tokens(count), count));
  REQUIRE(writer->snapshot());
  kvstrata::commit_options durable;
  const auto done = writer->commit(durable);
  REQUIRE(done);
  CHECK(done->computed_tokens == count);
  CHECK(done->blocks_stored == count / 4);
  CHECK(done->snapshots_stored >= 1);
}

TEST_CASE("layouts: presets, builders, text") {
  const auto flash = kvstrata::layout::from_preset("deepseek-v4-flash");
  REQUIRE(flash);
  CHECK(flash->info()->bytes_per_token == 3514.25);  // the reference's table 6.2
  const auto text = flash->text();
  REQUIRE(text);
  CHECK(text->find('\0') == std::string::npos);
  const auto again = kvstrata::layout::from_text(*text);
  REQUIRE(again);
  CHECK(std::memcmp(again->info()->digest, flash->info()->digest, 16) == 0);
  kvstrata::preset_options wide;
  wide.rows = KVSTRATA_ROWS_BF16;
  wide.index_keys = KVSTRATA_KEYS_BF16;
  CHECK(kvstrata::layout::from_preset("deepseek-v4-flash", wide)->info()->bytes_per_token == 6880.0);

  CHECK(kvstrata::layout::from_preset("no-such-model").code() == errc::not_found);
  CHECK(!kvstrata::layout::from_config("{"));
  CHECK(kvstrata::layout::gqa(2, 8, 128, 2)->info()->bytes_per_token == 2 * 2 * 8 * 128 * 2);
  CHECK(kvstrata::layout::mla(3, 656)->info()->bytes_per_token == 3 * 656);
  CHECK(kvstrata::layout::opaque()->info()->stream_count == 1);
}

TEST_CASE("a layout builder's streams arrive in order, and a bad one is named") {
  const auto layout = SmallLayout().build();
  REQUIRE(layout);
  CHECK(layout->info()->block_tokens == 4);
  CHECK(layout->info()->exact_replay_tokens == 3);
  CHECK(layout->stream(1)->role == KVSTRATA_ROLE_WINDOW);
  CHECK(layout->stream(1)->state_rows == 4);
  CHECK(layout->stream(2).code() == errc::invalid_argument);
  CHECK(*layout->snapshot_bytes(3) == 3 * 8);
  CHECK(*layout->rows_at(0, 7) == 3);

  kvstrata::layout_builder bad = SmallLayout();
  bad.rows(kvstrata::role::other, 0, 0, 8);
  CHECK(bad.size() == 3);
  const auto refused = bad.build();
  REQUIRE(!refused);
  CHECK(refused.code() == errc::invalid_argument);
  CHECK(refused.error().field().find("2") != std::string_view::npos);
}

TEST_CASE("store, look up, restore") {
  kvstrata::cache cache = OpenMemory();
  auto name_space = cache.open_namespace(*SmallLayout().build(), Who("a"));
  REQUIRE(name_space);
  Store(*name_space, 10);

  auto match = name_space->lookup(Tokens(20));
  REQUIRE(match);
  const auto info = match->info();
  REQUIRE(info);
  CHECK(info->mode == KVSTRATA_MODE_SNAPSHOT);
  CHECK(info->usable_tokens == 10);
  CHECK(match->renew());

  auto plan = match->plan();
  REQUIRE(plan);
  const auto segments = plan->segments();
  REQUIRE(segments);
  REQUIRE(segments->size() == 2);
  Engine engine;
  REQUIRE(plan->start(engine.Buffers()));
  CHECK(plan->wait_layers(1));
  const auto done = plan->wait();
  REQUIRE(done);
  CHECK(done->state == KVSTRATA_PLAN_COMPLETE);
  CHECK(plan->poll()->quiesced == 1);
  Engine expected;
  expected.Run(0, 10);
  CHECK(engine.rows == expected.rows);
  CHECK(engine.ring == expected.ring);

  CHECK(*kvstrata::agree({&*match}) == 10);
  CHECK(match->limit(9));
  CHECK(match->info()->usable_tokens <= 9);
  CHECK(*name_space->lookup(Tokens(6))->first_difference() == UINT64_MAX);
}

TEST_CASE("a writer goes on from a restore that brought nothing") {
  kvstrata::cache cache = OpenMemory();
  auto name_space = cache.open_namespace(*SmallLayout().build(), Who("a"));
  REQUIRE(name_space);
  Store(*name_space, 10);
  kvstrata::lookup_options unleased;
  unleased.no_lease = true;
  auto match = name_space->lookup(Tokens(20), unleased);
  REQUIRE(match);
  REQUIRE(cache.trim(0));
  auto plan = match->plan();
  REQUIRE(plan);
  kvstrata::writer_options from;
  from.restored = &*plan;
  CHECK(name_space->open_writer(nullptr, from).code() == errc::invalid_state);
  Engine engine;
  REQUIRE(plan->start(engine.Buffers()));
  const auto done = plan->wait();
  REQUIRE(done);
  CHECK(done->state == KVSTRATA_PLAN_SHORTENED);
  CHECK(done->usable_tokens == 0);
  auto writer = name_space->open_writer(nullptr, from);
  REQUIRE(writer);
  const auto info = writer->commit();
  REQUIRE(info);
  CHECK(info->sequence_tokens == 0);
}

TEST_CASE("a writer says whether it takes what a bounded replay makes") {
  for (const bool admit : {false, true}) {
    kvstrata::cache cache = OpenMemory();
    auto layout = SmallLayout();
    layout.replay(kvstrata::replay_mode::bounded, 4, 1);
    kvstrata::namespace_options never;
    never.snapshot_policy = KVSTRATA_SNAPSHOT_NEVER;
    auto name_space = cache.open_namespace(*layout.build(), Who("a"), never);
    REQUIRE(name_space);
    Store(*name_space, 10);
    kvstrata::lookup_options lookup;
    lookup.allowed_modes = mode_bit(kvstrata::resume_mode::bounded_replay);
    auto match = name_space->lookup(Tokens(20), lookup);
    REQUIRE(match);
    REQUIRE(match->info()->mode == KVSTRATA_MODE_BOUNDED_REPLAY);
    REQUIRE(match->info()->usable_tokens == 8);
    kvstrata::writer_options options;
    options.admit_inexact = admit;
    auto writer = name_space->open_writer(&*match, options);
    REQUIRE(writer);
    Engine engine;
    engine.Run(0, 20);
    REQUIRE(writer->set_sources(engine.Buffers()));
    const auto tokens = Tokens(20);
    REQUIRE(writer->advance(kvstrata::token_view(tokens).subview(8), 20));
    const auto info = writer->commit();
    REQUIRE(info);
    CHECK(info->blocks_stored == (admit ? 3 : 0));
    CHECK((info->drop_reason == KVSTRATA_E_UNSUPPORTED) == !admit);
    CHECK((cache.stats()->inexact_dropped > 0) == !admit);
  }
}

TEST_CASE("options reach the library") {
  kvstrata::cache cache = OpenMemory();
  auto name_space = cache.open_namespace(*SmallLayout().build(), Who("a"));
  REQUIRE(name_space);
  Store(*name_space, 10);

  kvstrata::lookup_options replay;
  replay.allowed_modes = mode_bit(kvstrata::resume_mode::full_replay);
  const auto replayed = name_space->lookup(Tokens(20), replay);
  CHECK(replayed->info()->mode == KVSTRATA_MODE_FULL_REPLAY);
  CHECK(replayed->info()->replay_from == 8 - 3);

  kvstrata::lookup_options held;
  held.held_tokens = 10;
  CHECK(name_space->lookup(Tokens(20), held)->info()->reason == KVSTRATA_REASON_HELD);

  kvstrata::lookup_options peek;
  peek.peek = true;
  const std::uint64_t lookups = cache.stats()->lookups;
  CHECK(name_space->lookup(Tokens(20), peek)->info()->leased == 0);
  CHECK(cache.stats()->lookups == lookups);
  CHECK(cache.stats()->peeks == 1);

  const auto other = cache.open_namespace(*SmallLayout().build(), Who("b"));
  REQUIRE(other);
  CHECK(other->lookup(Tokens(20))->info()->usable_tokens == 0);
  kvstrata::namespace_options must;
  must.must_exist = true;
  CHECK(cache.open_namespace(*SmallLayout().build(), Who("c"), must).code() == errc::identity_mismatch);
  CHECK(cache.open_namespace(*SmallLayout().build(), kvstrata::identity{}).code() == errc::invalid_argument);
}

TEST_CASE("a writer forks, truncates and tells where it wants snapshots") {
  kvstrata::cache cache = OpenMemory();
  auto name_space = cache.open_namespace(*SmallLayout().build(), Who("a"));
  REQUIRE(name_space);
  Engine engine;
  engine.Run(0, 20);
  auto writer = name_space->open_writer();
  REQUIRE(writer);
  const auto positions = writer->snapshot_positions(Tokens(20));
  REQUIRE(positions);
  REQUIRE(positions->size() == 1);
  CHECK(positions->front() == 16);  // the last block boundary that the same prompt can use
  REQUIRE(writer->set_sources(engine.Buffers()));
  REQUIRE(writer->advance(Tokens(10), 10));
  auto fork = writer->fork();
  REQUIRE(fork);
  CHECK(writer->truncate(9));
  CHECK(fork->commit()->sequence_tokens == 10);
  CHECK(writer->commit()->sequence_tokens == 9);
}

TEST_CASE("maintenance: stats, events, verify, trim, drop") {
  kvstrata::cache cache = OpenMemory();
  auto name_space = cache.open_namespace(*SmallLayout().build(), Who("a"));
  REQUIRE(name_space);
  Store(*name_space, 12);
  CHECK(cache.stats()->held_blocks == 3);
  CHECK(name_space->info()->blocks == 3);

  std::uint64_t next = 1;
  const auto events = cache.events(next);
  REQUIRE(events);
  CHECK(events->size() >= 4);
  CHECK(next == events->back().sequence + 1);

  const auto verified = cache.verify();
  REQUIRE(verified);
  CHECK(verified->records >= 3);
  CHECK(verified->corrupt == 0);
  std::uint64_t calls = 0;
  const auto watched = cache.verify([&](std::uint64_t, std::uint64_t) { return ++calls < 1000000; });
  CHECK(watched);

  CHECK(cache.sync().code() != errc::internal);
  const auto held = cache.trim(0);
  REQUIRE(held);
  CHECK(*held == cache.stats()->held_bytes);
  CHECK(cache.stats()->held_blocks == 0);
  CHECK(cache.purge_foreign());
  CHECK(name_space->drop());
  CHECK(cache.close());
  CHECK(name_space->lookup(Tokens(4)).code() == errc::invalid_state);
}

TEST_CASE("an empty handle answers and does not crash") {
  kvstrata::cache cache;
  CHECK(cache.stats().code() == errc::invalid_argument);
  CHECK(cache.close().code() == errc::invalid_argument);
  kvstrata::name_space name_space;
  CHECK(name_space.lookup(Tokens(4)).code() == errc::invalid_argument);
  CHECK(name_space.open_writer().code() == errc::invalid_argument);
  kvstrata::match match;
  CHECK(match.info().code() == errc::invalid_argument);
  CHECK(match.plan().code() == errc::invalid_argument);
  kvstrata::restore_plan plan;
  CHECK(plan.wait().code() == errc::invalid_argument);
  plan.cancel();
  kvstrata::writer writer;
  CHECK(writer.commit().code() == errc::invalid_argument);
  CHECK(kvstrata::layout{}.info().code() == errc::invalid_argument);
}

TEST_CASE("an error of open names the field") {
  const auto refused = kvstrata::cache::open({});
  REQUIRE(!refused);
  CHECK(refused.code() == errc::invalid_argument);
  CHECK(refused.error().field().find("capacity_bytes") != std::string_view::npos);
  CHECK(std::string(kvstrata::status_name(refused.code())) == "KVSTRATA_E_INVALID_ARGUMENT");
}

// Counts how often it is destroyed; holds nothing.
class EmptyStorage : public kvstrata::synchronous_storage<EmptyStorage> {
 public:
  explicit EmptyStorage(int* destroyed) : destroyed_(destroyed) {}
  ~EmptyStorage() { ++*destroyed_; }
  std::uint64_t capabilities() const { return 0; }
  errc put(const kvstrata::storage_request&, std::int64_t&) { return errc::ok; }
  errc get(const kvstrata::storage_request&, std::int64_t&) { return errc::not_found; }
  errc stat(const kvstrata_key&, bool& exists, std::uint64_t& payload_bytes) {
    exists = false;
    payload_bytes = 0;
    return errc::ok;
  }
  errc remove(const kvstrata_key&) { return errc::ok; }
  errc sync() { return errc::unsupported; }
  errc list(std::uint64_t& cursor, kvstrata::storage_listing&) {
    cursor = 0;
    return errc::ok;
  }

 private:
  int* destroyed_;
};

TEST_CASE("a C++ storage belongs to the cache once it is open, and stays with the caller if that fails") {
  int destroyed = 0;
  {
    kvstrata::storage_adapter<EmptyStorage> adapter(std::make_unique<EmptyStorage>(&destroyed));
    CHECK(!kvstrata::cache::open(kvstrata::cache_options{}, adapter));  // no capacity
    CHECK(adapter.get() != nullptr);
    CHECK(destroyed == 0);
    kvstrata::cache_options options;
    options.capacity_bytes = 1 << 20;
    auto cache = kvstrata::cache::open(options, adapter);
    if (!cache) FAIL(cache.error().c_str());
    CHECK(adapter.get() == nullptr);
    cache->reset();
    CHECK(destroyed == 1);
  }
  CHECK(destroyed == 1);
}

}  // namespace
