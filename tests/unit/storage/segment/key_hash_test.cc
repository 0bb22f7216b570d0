// SPDX-License-Identifier: Apache-2.0
// The table of a segment store has 64 bits of hash of a key. Two keys of one hash are taken for each other: which
// leaves all other keys alone, loses no space, and outlives no opening otherwise than it was.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/storage/segment/record_table.h"
#include "tests/support/fake_random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::Rng;
using kvstrata::test::TempDir;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::OpenReadOnly;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Store;

namespace {

// XXH3 of 32 bytes adds a product of the first eight, xored with a word of its secret and the seed, and the next
// eight, likewise: where the former is 0, the latter do not matter.
storage::Key KeyOfOneHash(uint64_t number) {
  constexpr uint64_t kSecret = 0xBE4BA423396CFEB8;
  storage::Key key;
  base::StoreLittleEndian(key.bytes.data(), kSecret + base::kSequenceMultiplier);
  base::StoreLittleEndian(key.bytes.data() + 8, number);
  return key;
}

// What must be there: keys of their own, and one record for the two keys of one hash.
struct Model {
  std::map<storage::Key, std::string> alone;
  std::optional<std::pair<storage::Key, std::string>> shared;
};

constexpr uint64_t kShared = 2;
constexpr uint64_t kAlone = 4;

storage::Key AnyKey(Rng& random) {
  const uint64_t number = random.Next() % (kShared + kAlone);
  return number < kShared ? KeyOfOneHash(number) : KeyOf(number);
}

bool IsShared(const storage::Key& key) { return key == KeyOfOneHash(0) || key == KeyOfOneHash(1); }

void CheckAlone(storage::Storage& store, const Model& model) {
  for (uint64_t number = kShared; number < kShared + kAlone; ++number) {
    const auto known = model.alone.find(KeyOf(number));
    const auto read = ReadNow(store, KeyOf(number));
    REQUIRE(CodeOf(read.status()) == (known == model.alone.end() ? Code::kNotFound : Code::kOk));
    if (read.ok()) REQUIRE(*read == known->second);
  }
}

void CheckAll(storage::Storage& store, const Model& model) {
  CheckAlone(store, model);
  for (uint64_t number = 0; number < kShared; ++number) {
    const auto read = ReadNow(store, KeyOfOneHash(number));
    REQUIRE(CodeOf(read.status()) == (model.shared.has_value() ? Code::kOk : Code::kNotFound));
    if (read.ok()) REQUIRE(*read == model.shared->second);
  }
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(store, 3, &entries).ok());
  REQUIRE(entries.size() == model.alone.size() + (model.shared.has_value() ? 1 : 0));
  for (const storage::ListEntry& entry : entries) {
    if (IsShared(entry.key)) REQUIRE(entry.key == model.shared->first);
    REQUIRE(std::string(base::AsText(entry.meta)) == ReadNow(store, entry.key).value().substr(0, 9));
  }
}

void ChangeOne(storage::Storage& store, Model* model, Rng& random, uint64_t step) {
  const storage::Key key = AnyKey(random);
  if (random.Next() % 3 == 0) {
    REQUIRE(store.Remove(key).ok());
    if (IsShared(key)) model->shared.reset();
    model->alone.erase(key);
    return;
  }
  const std::string meta = std::to_string(100'000'000 + step);
  const std::string payload = meta + std::string(random.Next() % 20'000, 'x');
  REQUIRE(PutNow(store, key, payload, meta).status.ok());
  if (IsShared(key)) {
    model->shared = {key, payload};
  } else {
    model->alone[key] = payload;
  }
}

}  // namespace

TEST_CASE("two keys of one hash are one record, whichever was put last; others are as they were") {
  REQUIRE(KeyOfOneHash(0) != KeyOfOneHash(1));
  REQUIRE(storage::RecordTable::TagOf(KeyOfOneHash(0)) == storage::RecordTable::TagOf(KeyOfOneHash(1)));
  TempDir directory;
  storage::SegmentOptions options = Options(directory / "store");
  options.journal_bytes = 1;  // so that checkpoints come often
  Rng random(GENERATE(1, 2, 3));
  Store store = Open(options);
  const uint64_t empty_bytes = store->UsedBytes();
  const Store reader = OpenReadOnly(directory / "store");
  Model model;
  uint64_t checkpoints = 0;
  storage::FeedPage page;
  for (uint64_t step = 0; step < 500; ++step) {
    ChangeOne(*store, &model, random, step);
    const uint64_t then = random.Next() % 50;
    if (then < 5) REQUIRE(store->Sync().ok());
    if (then == 1) {
      checkpoints += store->stats().checkpoints;
      store.reset();
      store = Open(options);
      REQUIRE(store->stats().dropped_at_open == 0);
    }
    if (then == 2) {
      do {
        REQUIRE(reader->Follow(100, &page).ok());
      } while (!page.done);
      CheckAlone(*reader, model);
    }
    if (then < 4) CheckAll(*store, model);
  }
  CHECK(checkpoints + store->stats().checkpoints > 3);
  for (uint64_t number = 0; number < kShared + kAlone; ++number) {
    REQUIRE(store->Remove(number < kShared ? KeyOfOneHash(number) : KeyOf(number)).ok());
  }
  REQUIRE(store->Sync().ok());
  CHECK(store->UsedBytes() == empty_bytes);
  CHECK(store->stats().free_bytes == store->stats().segment_bytes);
}
