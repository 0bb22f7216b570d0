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
      REQUIRE(table.Get(*found).sequence == known->second.sequence);
      table.Unlink(*found);
      REQUIRE_FALSE(table.Find(KeyOf(number)).has_value());
      REQUIRE_FALSE(table.Get(*found).linked);
      table.Free(*found);
      REQUIRE(table.Get(*found).state == RecordState::kUnused);
      model.erase(known);
    } else {
      const RecordTable::Id id = *table.Add(KeyOf(number), InLog(step, 0, 4096), {}, {});
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
      {{{255, 0xFFF'FFFF, 3}}, 8193},
      {{{256, 7, 1}}, 4000},                       // one segment more than a slot can name
      {{{1, 0x1000'0000, 2}}, 8192},               // one unit further
      {{{1, 0, 0x1000'0000}}, uint64_t{1} << 40},  // one unit longer
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

TEST_CASE("record table: a record costs at most 54 bytes from 1,000 records on, growth included") {
  RecordTable table;
  for (uint64_t i = 0; i < 100'000; ++i) {
    REQUIRE(table.Add(KeyOf(i), InLog(i, 4096, i * 8), Extents{{0, static_cast<uint32_t>(i), 1}}, {}).has_value());
    // 48 a slot, 2 of buckets; at 1,000 the directories, and what is not filled of the last chunks, are 4 more.
    if (i + 1 >= 1000) REQUIRE(table.MemoryBytes() <= 54 * (i + 1) + sizeof(RecordTable));
  }
}
