// SPDX-License-Identifier: Apache-2.0
// Windows and pages: only the named bytes move, to where a byte-wise model says.
#include <map>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;

namespace {

using Bytes = std::vector<uint8_t>;

Bytes RandomBytes(Random& random, size_t count) {
  Bytes out(count);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random.Bits());
  return out;
}

}  // namespace

TEST_CASE("a ring keeps the last rows; export and import go by position") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 101;
  INFO("seed " << seed);
  Random random(seed);
  constexpr uint64_t kRow = 6, kCapacity = 5, kStride = 8;
  for (int round = 0; round < 200; ++round) {
    Bytes ring(kCapacity * kStride, 0xEE);
    std::map<uint64_t, Bytes> model;
    uint64_t position = random.Below(1000);
    for (int step = 0; step < 6; ++step) {
      auto a = Args<kvstrata_window_args>();
      a.row_bytes = kRow;
      a.capacity = kCapacity;
      a.position = position;
      a.rows = random.Below(13);
      a.ring = ring.data();
      a.ring_stride_bytes = kStride;
      a.linear_stride_bytes = 7;
      Bytes rows = RandomBytes(random, a.rows * 7);
      a.linear = rows.data();
      REQUIRE(k.window_append(&a, nullptr) == 0);
      for (uint64_t n = 0; n < a.rows; ++n) {
        model[position + n] = Bytes(rows.begin() + static_cast<std::ptrdiff_t>(n * 7),
                                    rows.begin() + static_cast<std::ptrdiff_t>(n * 7 + kRow));
      }
      position += a.rows;
    }
    const uint64_t held = std::min<uint64_t>(kCapacity, model.size());
    for (uint64_t i = 0; i < kCapacity; ++i) {
      CHECK(ring[i * kStride + 6] == 0xEE);
      CHECK(ring[i * kStride + 7] == 0xEE);
    }
    auto e = Args<kvstrata_window_args>();
    e.row_bytes = kRow;
    e.capacity = kCapacity;
    e.position = position - held;
    e.rows = held;
    e.ring = ring.data();
    e.ring_stride_bytes = kStride;
    Bytes linear(held * kRow);
    e.linear = linear.data();
    REQUIRE(k.window_export(&e, nullptr) == 0);
    for (uint64_t n = 0; n < held; ++n) {
      const Bytes row(linear.begin() + static_cast<std::ptrdiff_t>(n * kRow),
                      linear.begin() + static_cast<std::ptrdiff_t>((n + 1) * kRow));
      REQUIRE(row == model[position - held + n]);
    }
    // Into a ring of another capacity and back out again.
    Bytes other(9 * kRow, 0x11), again(linear.size());
    e.capacity = 9;
    e.ring = other.data();
    e.ring_stride_bytes = 0;
    REQUIRE(k.window_import(&e, nullptr) == 0);
    e.linear = again.data();
    REQUIRE(k.window_export(&e, nullptr) == 0);
    REQUIRE(again == linear);
  }
}

TEST_CASE("export and import refuse more rows than the ring holds") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  Bytes ring(4), linear(5, 9);
  auto a = Args<kvstrata_window_args>();
  a.row_bytes = 1;
  a.capacity = 4;
  a.rows = 5;
  a.ring = ring.data();
  a.linear = linear.data();
  CHECK(k.window_export(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
  CHECK(k.window_import(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
  CHECK(linear == Bytes(5, 9));
  CHECK(ring == Bytes(4, 0));
}

namespace {

// Pages of `slots` V4 rows, planar (576 data bytes a row, then 8 scale bytes a row, then padding) or interleaved.
struct Pages {
  uint64_t slots;
  bool planar;
  uint64_t stride() const { return planar ? (slots * 584 + 575) / 576 * 576 : slots * 584; }
  std::vector<kvstrata_segment> segments() const {
    if (!planar) return {{0, 0, 584, 584}};
    return {{0, 0, 576, 576}, {576, slots * 576, 8, 8}};
  }
  // Byte `b` of a row at `slot` of a page.
  uint64_t Offset(uint64_t slot, uint64_t b) const {
    if (!planar) return slot * 584 + b;
    return b < 576 ? slot * 576 + b : slots * 576 + slot * 8 + (b - 576);
  }
};

template <typename Id>
void CheckMovement(const kvstrata_kernels& k, const Pages& layout, Random& random) {
  constexpr uint64_t kPages = 7;
  const uint64_t first_row = random.Below(3 * layout.slots);
  const uint64_t rows = 1 + random.Below(2 * layout.slots + 2);
  const uint64_t ids = (first_row + rows - 1) / layout.slots + 1;
  std::vector<Id> page_ids;
  for (uint64_t i = 0; i < ids; ++i) page_ids.push_back(static_cast<Id>((i * 3 + 2) % kPages));
  if (ids > 1) page_ids[random.Below(ids)] = -1;
  const std::vector<kvstrata_segment> segments = layout.segments();

  auto a = Args<kvstrata_move_args>();
  a.page_id_type = sizeof(Id) == 8 ? KVSTRATA_KERNELS_INT64 : KVSTRATA_KERNELS_INT32;
  a.rows = rows;
  a.first_row = first_row;
  a.rows_per_page = layout.slots;
  a.page_ids = page_ids.data();
  a.page_id_count = ids;
  a.page_limit = kPages;
  a.page_stride_bytes = layout.stride();
  a.block_stride_bytes = 600;
  a.segments = segments.data();
  a.segment_count = segments.size();

  const Bytes block = RandomBytes(random, rows * 600);
  const Bytes before = RandomBytes(random, kPages * layout.stride());
  Bytes pages = before;
  Bytes source = block;
  a.pages = pages.data();
  a.block = source.data();
  REQUIRE(k.scatter_rows(&a, nullptr) == 0);
  Bytes expected = before;
  for (uint64_t n = 0; n < rows; ++n) {
    const Id id = page_ids[(first_row + n) / layout.slots];
    if (id < 0) continue;
    for (uint64_t b = 0; b < 584; ++b) {
      const uint64_t at =
          static_cast<uint64_t>(id) * layout.stride() + layout.Offset((first_row + n) % layout.slots, b);
      expected[at] = block[n * 600 + b];
    }
  }
  REQUIRE(pages == expected);  // every byte of every page, guards and padding included
  REQUIRE(source == block);

  Bytes target(rows * 600, 0xCD);
  a.block = target.data();
  REQUIRE(k.gather_rows(&a, nullptr) == 0);
  for (uint64_t n = 0; n < rows; ++n) {
    const bool skipped = page_ids[(first_row + n) / layout.slots] < 0;
    for (uint64_t b = 0; b < 600; ++b) {
      REQUIRE(target[n * 600 + b] == (skipped || b >= 584 ? 0xCD : block[n * 600 + b]));
    }
  }
  REQUIRE(pages == expected);
}

}  // namespace

TEST_CASE("gather and scatter move exactly the rows' bytes, planar and interleaved, with skipped pages") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 102;
  INFO("seed " << seed);
  Random random(seed);
  for (const uint64_t slots : {1u, 2u, 4u, 8u, 64u}) {
    for (const bool planar : {false, true}) {
      for (int round = 0; round < 4; ++round) {
        CheckMovement<int32_t>(k, {slots, planar}, random);
        CheckMovement<int64_t>(k, {slots, planar}, random);
      }
    }
  }
}

TEST_CASE("more rows than caches hold move to the same places, at odd addresses, with skipped and repeated pages") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  const uint64_t seed = 103;
  INFO("seed " << seed);
  Random random(seed);
  // 6 MB and 160 pages; what is expected comes from the reference, whose bytes the tests above check one by one.
  constexpr uint64_t kRows = 10240, kSlots = 64, kPages = 161;
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i <= kRows / kSlots; ++i) ids.push_back(static_cast<int32_t>((i * 3 + 2) % kPages));
  ids[5] = ids[77] = -1;
  ids[40] = ids[39];
  const std::vector<std::vector<kvstrata_segment>> layouts = {
      {{0, 0, 576, 576}, {576, kSlots * 576, 8, 8}},
      {{0, 3, 584, 584}},
      {{448, kSlots * 449, 131, 128}, {0, 0, 449, 448}, {576, kSlots * 580, 3, 3}},
      {{5, 0, 500, 500}, {505, 500 * kSlots + 30, 64, 64}}};
  for (const std::vector<kvstrata_segment>& segments : layouts) {
    for (const uint64_t block_stride : {uint64_t{0}, uint64_t{640}}) {
      auto a = Args<kvstrata_move_args>();
      a.page_id_type = KVSTRATA_KERNELS_INT32;
      a.rows = kRows;
      a.first_row = 13;
      a.rows_per_page = kSlots;
      a.page_ids = ids.data();
      a.page_id_count = ids.size();
      a.page_stride_bytes = 37441;
      a.block_stride_bytes = block_stride;
      a.segments = segments.data();
      a.segment_count = segments.size();
      const Bytes pages = RandomBytes(random, kPages * a.page_stride_bytes + 7);
      const Bytes block = RandomBytes(random, kRows * 640 + 3);
      const auto moved = [&](int32_t (*function)(const kvstrata_move_args*, void*)) {
        std::pair<Bytes, Bytes> out = {pages, block};
        a.pages = out.first.data() + 7;
        a.block = out.second.data() + 3;
        REQUIRE(function(&a, nullptr) == 0);
        return out;
      };
      CAPTURE(segments.size(), block_stride);
      REQUIRE(moved(k.gather_rows) == moved(Reference().gather_rows));
      REQUIRE(moved(k.scatter_rows) == moved(Reference().scatter_rows));
    }
  }
}

TEST_CASE("column segments pick the P half out of full-width compressor rows") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  // [OFF4]-style buffer: rows of 2w floats; only the first w are kept. w = 4 here.
  std::vector<float> pages(6 * 8), block(4 * 4, -1.0f);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<float>(i);
  const std::vector<int32_t> ids = {0};
  const kvstrata_segment segment = {0, 0, 32, 16};
  auto a = Args<kvstrata_move_args>();
  a.rows = 4;
  a.first_row = 1;
  a.rows_per_page = 6;
  a.page_ids = ids.data();
  a.page_id_count = 1;
  a.pages = pages.data();
  a.page_stride_bytes = pages.size() * sizeof(float);
  a.block = block.data();
  a.segments = &segment;
  a.segment_count = 1;
  REQUIRE(k.gather_rows(&a, nullptr) == 0);
  for (size_t row = 0; row < 4; ++row) {
    for (size_t c = 0; c < 4; ++c) CHECK(block[row * 4 + c] == static_cast<float>((row + 1) * 8 + c));
  }
}

TEST_CASE("movement refuses page ids and segments out of bounds and moves nothing") {
  const kvstrata_kernels& k = *GENERATE(from_range(Levels()));
  INFO("level " << k.name);
  Bytes pages(4 * 16, 1), block(8 * 4, 2);
  std::vector<int32_t> ids = {0, 3};
  kvstrata_segment segment = {0, 0, 4, 4};
  auto a = Args<kvstrata_move_args>();
  a.rows = 8;
  a.rows_per_page = 4;
  a.page_ids = ids.data();
  a.page_id_count = 2;
  a.page_limit = 4;
  a.pages = pages.data();
  a.page_stride_bytes = 16;
  a.block = block.data();
  a.segments = &segment;
  a.segment_count = 1;
  const auto refused = [&](const kvstrata_move_args& args) {
    return k.scatter_rows(&args, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT && pages == Bytes(64, 1);
  };
  ids[1] = 4;
  CHECK(refused(a));
  ids[1] = -2;
  CHECK(refused(a));
  ids[1] = 3;
  kvstrata_move_args b = a;
  b.page_id_count = 1;
  CHECK(refused(b));
  b = a;
  b.page_stride_bytes = 15;
  CHECK(refused(b));
  segment.page_row_stride = 3;
  CHECK(refused(a));
  segment = {0, 0, 4, 4};
  b = a;
  b.block_stride_bytes = 3;
  CHECK(refused(b));
  REQUIRE(k.scatter_rows(&a, nullptr) == 0);
  CHECK(pages[0] == 2);
  CHECK(pages[16] == 1);
  CHECK(pages[63] == 2);
}
