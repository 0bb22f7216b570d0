// SPDX-License-Identifier: Apache-2.0
// The table of records: random calls beside a map, places that no slot can hold, and what a record costs.
#include "lib/storage/segment/record_table.h"

#include <algorithm>
#include <map>
#include <string>

#include "lib/base/bytes.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"

namespace {

using namespace kvstrata::core;
using storage::Key;
using storage::Record;
using storage::RecordState;
using storage::RecordTable;
using Extents = std::vector<format::Extent>;

Key KeyOf(uint64_t number) {
  Key key;
  base::StoreLittleEndian(key.bytes.data() + 8, number);
  return key;
}

Record Pending(uint64_t sequence, uint64_t payload_bytes) {
  Record record;
  record.sequence = sequence;
  record.payload_bytes = payload_bytes;
  record.state = RecordState::kPending;
  return record;
}

Record InLog(uint64_t sequence, uint64_t payload_bytes, uint64_t offset) {
  Record record = Pending(sequence, payload_bytes);
  record.state = RecordState::kDurable;
  record.log = 1;
  record.log_offset = offset;
  return record;
}

Extents PlaceOf(const RecordTable& table, RecordTable::Id id) {
  const auto place = table.PlaceOf(id);
  return {place.begin(), place.end()};
}

}  // namespace

TEST_CASE("record table: random adds, unlinks and frees beside a map") {
  kvstrata::test::Rng random(20261130);
  RecordTable table;
  struct Known {
    RecordTable::Id id;
    uint64_t sequence;
  };
  std::map<uint64_t, Known> model;
  RecordTable::Id most = 0;
  for (uint64_t step = 0; step < 20'000; ++step) {
    const uint64_t number = random.Next() % 700;
    const auto known = model.find(number);
    const auto found = table.Find(KeyOf(number));
    REQUIRE(found.has_value() == (known != model.end()));
    if (found.has_value()) {
      REQUIRE(*found == known->second.id);
      REQUIRE(table.Get(*found).writing == RecordTable::WritingOf(known->second.sequence));
      REQUIRE(table.Get(*found).log_offset == known->second.sequence * 8);
      REQUIRE(RecordTable::IsOf(table.Get(*found).kept_hash, KeyOf(number)));
      table.Unlink(*found);
      REQUIRE_FALSE(table.Find(KeyOf(number)).has_value());
      REQUIRE_FALSE(table.Get(*found).linked);
      table.Free(*found);
      REQUIRE(table.Get(*found).state == RecordState::kUnused);
      model.erase(known);
    } else {
      const RecordTable::Id id = *table.Add(KeyOf(number), InLog(step, 0, step * 8), {}, {});
      model[number] = {id, step};
      most = std::max(most, static_cast<RecordTable::Id>(model.size()));
    }
    REQUIRE(table.size() == model.size());
    REQUIRE(table.end() == most);  // I2
  }
}

TEST_CASE("record table: a place comes back as it was given, in the slot or beside it") {
  // Sizes by hand: payload of u units is (u - 1) * 4096 + 1 to u * 4096 bytes.
  const std::vector<std::pair<Extents, uint64_t>> cases = {
      {{}, 0},
      {{{0, 0, 1}}, 1},
      {{{0, 0, 1}}, 4096},
      {{{63, 0x3FFF'FFFF, 3}}, 8193},
      {{{64, 7, 1}}, 4000},                     // one segment more than a slot can name
      {{{1, 0x4000'0000, 2}}, 8192},            // one unit further
      {{{1, 0, 0x1'0000}}, uint64_t{1} << 28},  // one unit longer
      {{{1, 0, 0xFFFF}}, (uint64_t{1} << 28) - 4096},
      {{{3, 10, 1}, {2, 20, 1}, {9, 5, 2}}, 3 * 4096 + 5},
      {{{0, 1, 1}, {0, 3, 1}, {0, 5, 1}, {0, 7, 1}, {0, 9, 1}, {0, 11, 1}, {0, 13, 1}, {0, 15, 1}}, 8 * 4096},
  };
  RecordTable table;
  std::vector<RecordTable::Id> ids;
  for (uint64_t i = 0; i < cases.size(); ++i) {
    ids.push_back(*table.Add(KeyOf(i), InLog(i, cases[i].second, i * 8), cases[i].first, {}));
  }
  for (uint64_t i = 0; i < cases.size(); ++i) {
    INFO(i);
    CHECK(PlaceOf(table, ids[i]) == cases[i].first);
    CHECK(table.Get(ids[i]).payload_bytes == cases[i].second);
    table.Unlink(ids[i]);
    table.Free(ids[i]);
  }
  // Nothing of an old place is left in a slot that is used again.
  const RecordTable::Id again = *table.Add(KeyOf(1), InLog(1, 5000, 0), Extents{{4, 5, 2}}, {});
  CHECK(PlaceOf(table, again) == Extents{{4, 5, 2}});
}

TEST_CASE("record table: key and meta stay until a log holds the record, and readers are counted") {
  RecordTable table;
  const std::vector<std::byte> meta(4096, std::byte{7});
  Record record = Pending(9, 100);
  record.meta_bytes = 4096;
  const RecordTable::Id id = *table.Add(KeyOf(3), record, Extents{{0, 1, 1}}, meta);
  REQUIRE(table.UnloggedOf(id) != nullptr);
  CHECK(table.UnloggedOf(id)->key == KeyOf(3));
  CHECK(table.UnloggedOf(id)->meta == meta);
  table.SetState(id, RecordState::kDurable);
  table.SetLog(id, 65535, (uint64_t{1} << 48) - 8);
  CHECK(table.UnloggedOf(id) == nullptr);
  table.AddReader(id);
  table.AddReader(id);
  table.DropReader(id);
  table.SetQuarantined(id, true);
  const Record known = table.Get(id);
  CHECK(known.state == RecordState::kDurable);
  CHECK(known.log == 65535);
  CHECK(known.log_offset == (uint64_t{1} << 48) - 8);
  CHECK(known.meta_bytes == 4096);
  CHECK(known.linked);
  CHECK(known.quarantined);
  CHECK(known.being_read);
  table.DropReader(id);
  CHECK_FALSE(table.Get(id).being_read);
}

TEST_CASE("record table: a log's number, an offset and a meta come back as they were given") {
  RecordTable table;
  const auto id_of = [&](uint64_t key, uint16_t meta_bytes) {
    Record record = Pending(key << 40 | 77, 5000);
    record.meta_bytes = meta_bytes;
    return *table.Add(KeyOf(key), record, Extents{{2, 9, 2}}, std::vector<std::byte>(meta_bytes));
  };
  struct Case {
    uint16_t meta_bytes, log;
    uint64_t offset;
  };
  // What a slot holds, and one step beyond of each; then within again.
  const uint64_t far = uint64_t{1} << 34;
  const std::vector<Case> cases = {{0, 1, 4096},   {2040, 31, far - 8}, {2048, 1, 8}, {13, 1, 8},
                                   {16, 32, 4096}, {16, 2, far},        {16, 2, 12},  {4096, 65535, 4096}};
  for (uint64_t i = 0; i < cases.size(); ++i) {
    INFO(i);
    const auto [meta_bytes, log, offset] = cases[i];
    const RecordTable::Id id = id_of(i, meta_bytes);
    CHECK(table.UnloggedOf(id)->sequence == (i << 40 | 77));
    CHECK(table.Get(id).log == 0);
    table.SetState(id, RecordState::kDurable);
    for (const auto& [now, at] : {std::pair{log, offset}, std::pair{uint16_t{3}, uint64_t{8192}}, {log, offset}}) {
      table.SetLog(id, now, at);
      const Record known = table.Get(id);
      CHECK(known.log == now);
      CHECK(known.log_offset == at);
      CHECK(known.meta_bytes == meta_bytes);
      CHECK(known.payload_bytes == 5000);
      CHECK(PlaceOf(table, id) == Extents{{2, 9, 2}});
    }
    CHECK(table.Get(id).writing == RecordTable::WritingOf(i << 40 | 77));
    table.Unlink(id);
    table.Free(id);
  }
}

TEST_CASE("record table: keys are told apart by each bit of 64, and two of one hash are one") {
  constexpr uint64_t kTag = 0x0123'4567'89AB'CDEF;
  RecordTable table;
  const auto add = [&](RecordTable::Tag tag) { return *table.AddLogged(tag, InLog(1, 4096, 8), Extents{{0, 1, 1}}); };
  // Few records, so that all bits but the lowest 8 are told by what is kept; then many, so that chains tell more.
  for (const uint64_t others : {uint64_t{0}, uint64_t{5000}}) {
    for (uint64_t i = 0; i < others; ++i) add(RecordTable::TagOf(KeyOf(i)));
    std::map<int, RecordTable::Id> near;
    for (int bit = 0; bit < 64; ++bit) {
      REQUIRE_FALSE(table.Find(kTag ^ uint64_t{1} << bit).has_value());
      near[bit] = add(kTag ^ uint64_t{1} << bit);
      REQUIRE_FALSE(table.Find(kTag).has_value());
    }
    const RecordTable::Id id = add(kTag);
    CHECK(table.Find(kTag) == id);
    for (int bit = 0; bit < 64; ++bit) {
      REQUIRE(table.Find(kTag ^ uint64_t{1} << bit) == near[bit]);
      table.Unlink(near[bit]);
      table.Free(near[bit]);
      REQUIRE_FALSE(table.Find(kTag ^ uint64_t{1} << bit).has_value());
      REQUIRE(table.Find(kTag) == id);
    }
    table.Unlink(id);
    table.Free(id);
    CHECK(table.size() == others);
    for (uint64_t i = 0; i < others; ++i) REQUIRE(table.Find(KeyOf(i)).has_value());
  }
}

TEST_CASE("record table: what comes in bulk is found, what does not is not, also where more comes than was said") {
  RecordTable table;
  table.BeginBulk(3000);
  for (uint64_t i = 0; i < 10'000; ++i) {
    if (i == 9'000) table.EndBulk();
    REQUIRE_FALSE(table.Find(KeyOf(i)).has_value());
    const auto id = table.Add(KeyOf(i), InLog(i, 4096, i * 8), {}, {});
    REQUIRE(id.has_value());
    REQUIRE(table.Find(KeyOf(i)) == id);
    if (i % 3 != 0) continue;
    table.Unlink(*id);  // as by a removal behind it in the log
    table.Free(*id);
  }
  for (uint64_t i = 0; i < 20'000; ++i) CHECK(table.Find(KeyOf(i)).has_value() == (i < 10'000 && i % 3 != 0));
}

TEST_CASE("record table: a record costs at most 32 bytes from 1,000 records on, growth included") {
  RecordTable table;
  for (uint64_t i = 0; i < 100'000; ++i) {
    REQUIRE(table.Add(KeyOf(i), InLog(i, 4096, i * 8), Extents{{0, static_cast<uint32_t>(i), 1}}, {}).has_value());
    // 26 a slot, 2 of buckets; at 1,000 the directories, and what is not filled of the last chunks, are 4 more.
    if (i + 1 >= 1000) REQUIRE(table.MemoryBytes() <= 32 * (i + 1) + sizeof(RecordTable));
  }
}
