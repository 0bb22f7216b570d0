// SPDX-License-Identifier: Apache-2.0
// What a direct write is made of: the source's bytes in order and zeros behind them, in whole units on units'
// boundaries, and nothing copied that lies on one.
#include "lib/storage/segment/unit_gather.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using kvstrata::core::storage::Gather;
using kvstrata::core::storage::UnitGather;

namespace {

constexpr size_t kUnit = 4096;  // FORMAT.md

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kUnit)); }
};
using Aligned = std::unique_ptr<std::byte, FreeAligned>;

Aligned Units(size_t count) {
  return Aligned(static_cast<std::byte*>(::operator new(count* kUnit, std::align_val_t(kUnit))));
}

// One part of a source: where it begins within memory of its own, beyond a unit's boundary, and its size.
struct Part {
  size_t beyond = 0;
  size_t bytes = 0;
};

struct Source {
  std::vector<Aligned> memory;
  std::vector<base::ByteView> parts;
  std::vector<std::byte> all;

  explicit Source(const std::vector<Part>& made) {
    base::SeededRandom random(7);
    for (const Part& part : made) {
      memory.push_back(Units(part.bytes / kUnit + 2));
      const base::MutableBytes bytes(memory.back().get() + part.beyond, part.bytes);
      REQUIRE(random.Fill(bytes).ok());
      parts.emplace_back(bytes);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
};

struct Written {
  std::vector<std::byte> bytes;
  uint64_t taken = 0;
  // Bytes of pieces that lie in the source itself.
  uint64_t uncopied = 0;
};

Written WriteAll(const Source& source, size_t room_units) {
  const Aligned room = Units(room_units);
  Gather gather(source.parts);
  UnitGather units(&gather, {room.get(), room_units * kUnit});
  Written written;
  while (written.taken < source.all.size()) {
    const auto pieces = units.Next(source.all.size() - written.taken);
    REQUIRE(units.taken() > 0);
    written.taken += units.taken();
    for (const base::ByteView piece : pieces) {
      CHECK(reinterpret_cast<uintptr_t>(piece.data()) % kUnit == 0);
      CHECK(piece.size() % kUnit == 0);
      const bool copied = piece.data() >= room.get() && piece.data() < room.get() + room_units * kUnit;
      if (!copied) written.uncopied += piece.size();
      written.bytes.insert(written.bytes.end(), piece.begin(), piece.end());
    }
  }
  return written;
}

}  // namespace

TEST_CASE("a direct write takes whole units from where they lie, and copies the rest") {
  struct Case {
    std::vector<Part> parts;
    uint64_t uncopied;
  };
  const std::vector<Case> cases = {
      {{{0, 10 * kUnit}}, 10 * kUnit},                                // a staged record, in units
      {{{0, 10 * kUnit + 1}}, 10 * kUnit},                            // its last byte in a unit of its own
      {{{0, 100}}, 0},                                                // less than a unit
      {{{64, 5 * kUnit}}, 0},                                         // beyond a boundary all the way
      {{{0, kUnit}, {0, 3 * kUnit}}, 4 * kUnit},                      // a head and rows
      {{{8, 3000}, {100, kUnit - 3000}, {0, 3 * kUnit}}, 3 * kUnit},  // a head in two parts that fill a unit
      {{{0, 2 * kUnit + 10}, {0, 2 * kUnit}}, 2 * kUnit},             // rows that lie otherwise than the file
      {{{0, 0}, {0, 2 * kUnit}, {0, 0}, {5, 7}}, 2 * kUnit},          // empty parts
  };
  const size_t room_units = GENERATE(1u, 3u, 256u);
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i, room_units);
    const Source source(cases[i].parts);
    const Written written = WriteAll(source, room_units);
    CHECK(written.taken == source.all.size());
    CHECK(written.uncopied == cases[i].uncopied);
    REQUIRE(written.bytes.size() == (source.all.size() + kUnit - 1) / kUnit * kUnit);
    CHECK(std::equal(source.all.begin(), source.all.end(), written.bytes.begin()));
    CHECK(std::all_of(written.bytes.begin() + static_cast<ptrdiff_t>(source.all.size()), written.bytes.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST_CASE("a direct write of more parts than one call takes goes on with the next") {
  std::vector<Part> parts;
  for (size_t i = 0; i < 300; ++i) parts.push_back({i % 3 == 0 ? 0 : i, i % 5 == 0 ? kUnit : 1000 + i});
  const Source source(parts);
  const Written written = WriteAll(source, 2);
  CHECK(written.taken == source.all.size());
  CHECK(std::equal(source.all.begin(), source.all.end(), written.bytes.begin()));
}

TEST_CASE("an extent's end cuts a source between two writes") {
  const Source source({{0, 6 * kUnit}});
  const Aligned room = Units(1);
  Gather gather(source.parts);
  for (const size_t units : {2u, 3u, 1u}) {
    UnitGather part(&gather, {room.get(), kUnit});
    const auto pieces = part.Next(units * kUnit);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].size() == units * kUnit);
  }
  CHECK(gather.Here(1).empty());
}
