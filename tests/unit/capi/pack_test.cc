// SPDX-License-Identifier: Apache-2.0
// Rows of floats that are stored in packed forms, through the C API: what lies on a form's grid takes the form's bytes
// and comes back bit for bit, what does not stays as it is and is counted. And the golden record of such rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvstrata/kernels.h"
#include "tests/support/catch.hpp"
#include "tests/unit/capi/world.h"

namespace kvstrata::test {
namespace {

using Bytes = std::vector<std::byte>;

// Rows of one form's grid: unpacked from codes, so packing gives those back.
Bytes GridRows(Rng& rng, int32_t format, uint32_t width, int32_t element, uint64_t rows) {
  const kvstrata_kernels& kernels = *kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  std::vector<float> floats(rows * width);
  for (float& value : floats) value = static_cast<float>(static_cast<int64_t>(rng.Below(2001)) - 1000) / 64.0f;
  Bytes codes(rows * 512), rope(rows * 128), scales(rows * 32);
  auto pack = Sized<kvstrata_pack_rows_args>();
  pack.format = format;
  pack.source_type = KVSTRATA_KERNELS_F32;
  pack.rows = rows;
  pack.source = floats.data();
  auto unpack = Sized<kvstrata_unpack_rows_args>();
  unpack.format = format;
  unpack.destination_type = element;
  unpack.rows = rows;
  pack.codes = reinterpret_cast<uint8_t*>(codes.data());
  pack.rope = reinterpret_cast<uint8_t*>(rope.data());
  pack.scales = reinterpret_cast<uint8_t*>(scales.data());
  unpack.codes = pack.codes;
  unpack.rope = pack.rope;
  unpack.scales = pack.scales;
  REQUIRE(kernels.pack_rows(&pack, nullptr) == 0);
  Bytes out(rows * width * (element == KVSTRATA_KERNELS_F32 ? 4 : 2));
  unpack.destination = out.data();
  REQUIRE(kernels.unpack_rows(&unpack, nullptr) == 0);
  return out;
}

struct Case {
  uint32_t pack;
  int32_t format;
  uint32_t width;
  uint32_t packed_bytes;
  bool f32;

  uint32_t row_bytes() const { return width * (f32 ? 4 : 2); }
};

const std::vector<Case> kCases = {{KVSTRATA_PACK_FP8_ROW_584, KVSTRATA_KERNELS_FORMAT_V4_ROW, 512, 584, false},
                                  {KVSTRATA_PACK_FP8_ROW_584, KVSTRATA_KERNELS_FORMAT_V4_ROW, 512, 584, true},
                                  {KVSTRATA_PACK_FP8_ROW_528, KVSTRATA_KERNELS_FORMAT_V41_WINDOW, 512, 528, false},
                                  {KVSTRATA_PACK_FP4_ROW_288, KVSTRATA_KERNELS_FORMAT_V41_ENTRY, 512, 288, true},
                                  {KVSTRATA_PACK_FP8_KEY_132, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8, 128, 132, false},
                                  {KVSTRATA_PACK_FP4_KEY_68, KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, 128, 68, true}};

constexpr uint64_t kBlock = 32, kBlocks = 6;

// One rows stream, exact, of one row a token.
struct RowStore {
  explicit RowStore(const Case& one) : kind(one) {
    auto stream = Sized<kvstrata_stream>();
    stream.kind = KVSTRATA_STREAM_ROWS;
    stream.role = KVSTRATA_ROLE_OTHER;
    stream.ratio = 1;
    stream.row_bytes = one.row_bytes();
    stream.packing = one.f32 ? KVSTRATA_PACKING_F32 : KVSTRATA_PACKING_BF16;
    stream.flags = KVSTRATA_STREAM_EXACT;
    auto desc = Sized<kvstrata_layout_desc>();
    desc.block_tokens = kBlock;
    desc.streams = &stream;
    desc.stream_count = 1;
    REQUIRE(kvstrata_layout_create(&desc, Out(layout), nullptr) == KVSTRATA_OK);
    auto options = Sized<kvstrata_cache_options>();
    options.capacity_bytes = 64 << 20;
    REQUIRE(kvstrata_cache_open(&options, Out(cache), nullptr) == KVSTRATA_OK);
    for (int32_t i = 0; i < static_cast<int32_t>(kBlock * kBlocks) + 1; ++i) ids.push_back(i);
  }

  void Open(uint32_t pack, uint32_t compress) {
    auto names = identity.Options(layout.get());
    names.pack = pack;
    names.compress = compress;
    Error error;
    const kvstrata_status status = kvstrata_namespace_open(cache.get(), &names, Out(space), &error);
    INFO(Describe(status, error));
    REQUIRE(status == KVSTRATA_OK);
  }
  kvstrata_buffer BufferOf(Bytes& rows) const {
    auto buffer = Sized<kvstrata_buffer>();
    buffer.base = rows.data();
    buffer.size_bytes = rows.size();
    return buffer;
  }
  void Put(Bytes rows) {
    WriterHandle writer;
    auto tokens = Sized<kvstrata_tokens>();
    tokens.ids = ids.data();
    tokens.count = kBlock * kBlocks;
    const kvstrata_buffer source = BufferOf(rows);
    REQUIRE(kvstrata_writer_open(space.get(), nullptr, nullptr, Out(writer), nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_writer_set_source(writer.get(), &source, nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_writer_advance(writer.get(), &tokens, tokens.count, nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_writer_commit(writer.get(), 0, 0, nullptr, nullptr) == KVSTRATA_OK);
  }
  Bytes Restored() {
    Bytes rows(kBlock * kBlocks * kind.row_bytes(), std::byte{0xee});
    auto tokens = Sized<kvstrata_tokens>();
    tokens.ids = ids.data();
    tokens.count = ids.size();
    MatchHandle match;
    PlanHandle plan;
    const kvstrata_buffer destination = BufferOf(rows);
    auto result = Sized<kvstrata_plan_result>();
    REQUIRE(kvstrata_lookup(space.get(), &tokens, nullptr, Out(match), nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_plan_start(plan.get(), &destination, 1, 0, nullptr) == KVSTRATA_OK);
    REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
    CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
    CHECK(result.usable_tokens == kBlock * kBlocks);
    return rows;
  }
  kvstrata_stats Stats() const {
    auto stats = Sized<kvstrata_stats>();
    REQUIRE(kvstrata_cache_stats(cache.get(), &stats, nullptr) == KVSTRATA_OK);
    return stats;
  }

  const Case kind;
  TestIdentity identity;
  LayoutHandle layout;
  CacheHandle cache;
  NamespaceHandle space;
  std::vector<int32_t> ids;
};

std::string ReadGolden(const std::string& name) {
  std::ifstream stream(KVSTRATA_GOLDEN_FORMAT "/" + name, std::ios::binary);
  REQUIRE(stream.good());
  return std::string{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Under the key that its meta says.
void PutGolden(const kvstrata_storage& table, const std::string& name) {
  const std::string meta = ReadGolden(name + ".meta"), payload = ReadGolden(name + ".payload");
  const kvstrata_iovec part{payload.data(), payload.size()};
  auto request = Sized<kvstrata_storage_request>();
  request.kind = KVSTRATA_STORAGE_PUT;
  std::memcpy(request.key.bytes, meta.data() + 40, 24);
  std::memcpy(request.key.bytes + 24, meta.data() + 6, 2);
  request.parts = &part;
  request.part_count = 1;
  request.meta = meta.data();
  request.meta_size = meta.size();
  kvstrata_status stored = KVSTRATA_E_INTERNAL;
  request.user = &stored;
  request.complete = [](void* user, kvstrata_status status, uint64_t, int64_t) {
    *static_cast<kvstrata_status*>(user) = status;
  };
  REQUIRE(table.submit(table.ctx, &request, 1, sizeof request) == KVSTRATA_OK);
  REQUIRE(stored == KVSTRATA_OK);
}

void AppendNumber(bool f32, double value, Bytes* out) {
  const auto number = static_cast<float>(value);
  std::byte bytes[4];
  std::memcpy(bytes, &number, 4);
  out->insert(out->end(), bytes + (f32 ? 0 : 2), bytes + 4);
}

}  // namespace

TEST_CASE("rows on the grid of a form are stored in it and come back bit for bit, others are counted", "[capi]") {
  Rng rng(TestSeed("pack", 20261207));
  for (const Case& one : kCases) {
    for (const uint32_t compress : {uint32_t{0}, uint32_t{KVSTRATA_COMPRESS_ALL}}) {
      CAPTURE(one.pack, one.f32, compress);
      RowStore store(one);
      store.Open(one.pack, compress);
      Bytes rows = GridRows(rng, one.format, one.width, one.f32 ? KVSTRATA_KERNELS_F32 : KVSTRATA_KERNELS_BF16,
                            kBlock * kBlocks);
      // One number of the third block lies between two of the grid.
      rows[(2 * kBlock + 5) * one.row_bytes()] ^= std::byte{1};
      store.Put(rows);
      const kvstrata_stats stats = store.Stats();
      CHECK(stats.packed_slices == kBlocks - 1);
      CHECK(stats.off_grid_slices == 1);
      CHECK(stats.compressed_from_bytes == rows.size());
      const uint64_t packed = (kBlocks - 1) * kBlock * one.packed_bytes + kBlock * one.row_bytes();
      CHECK(stats.compressed_to_bytes <= packed + (kBlocks - 1) * 64);
      if (compress == 0) CHECK(stats.compressed_to_bytes >= packed);
      CHECK(store.Restored() == rows);
      auto verified = Sized<kvstrata_verify_info>();
      REQUIRE(kvstrata_cache_verify(store.cache.get(), nullptr, nullptr, &verified, nullptr) == KVSTRATA_OK);
      CHECK(verified.corrupt == 0);
    }
  }
}

TEST_CASE("forms of another width, and of other numbers, leave rows as they are", "[capi]") {
  Rng rng(TestSeed("pack others", 20261208));
  for (const Case& one : kCases) {
    CAPTURE(one.pack, one.f32);
    RowStore store(one);
    store.Open(one.width == 512 ? KVSTRATA_PACK_FP8_KEY_132 : KVSTRATA_PACK_FP8_ROW_584, 0);
    const Bytes rows =
        GridRows(rng, one.format, one.width, one.f32 ? KVSTRATA_KERNELS_F32 : KVSTRATA_KERNELS_BF16, kBlock * kBlocks);
    store.Put(rows);
    const kvstrata_stats stats = store.Stats();
    CHECK(stats.packed_slices + stats.off_grid_slices + stats.compressed_from_bytes == 0);
    CHECK(store.Restored() == rows);
  }
}

// The values are those of generate.py, which knows the forms from FORMAT.md alone.
TEST_CASE("golden rows in packed forms are restored as the floats that they stand for", "[capi]") {
  World world;
  for (const char* name : {"store", "packed_namespace", "packed_block"}) PutGolden(world.table, name);
  world.OpenCache();
  kvstrata_stream streams[2] = {Sized<kvstrata_stream>(), Sized<kvstrata_stream>()};
  for (kvstrata_stream& stream : streams) {
    stream.kind = KVSTRATA_STREAM_ROWS;
    stream.ratio = 2;
    stream.flags = KVSTRATA_STREAM_EXACT;
  }
  streams[0].role = KVSTRATA_ROLE_CSA_ENTRY;
  streams[0].row_bytes = 1024;
  streams[0].packing = KVSTRATA_PACKING_BF16;
  streams[1].role = KVSTRATA_ROLE_INDEX_KEY;
  streams[1].row_bytes = 512;
  streams[1].packing = KVSTRATA_PACKING_F32;
  auto desc = Sized<kvstrata_layout_desc>();
  desc.block_tokens = 4;
  desc.profile = KVSTRATA_PROFILE_Q;
  desc.streams = streams;
  desc.stream_count = 2;
  LayoutHandle layout;
  REQUIRE(kvstrata_layout_create(&desc, Out(layout), nullptr) == KVSTRATA_OK);
  TestIdentity identity;
  for (const char* name :
       {"model.quantization", "rope", "packing", "adapter", "engine.state_version", "kernel.numerics"}) {
    identity.Remove(name);
  }
  identity.Set("model.weights", std::string("\0\1\2\3\4\5\6", 7));
  identity.Set("tenant", "");
  auto names = identity.Options(layout.get());
  names.flags = KVSTRATA_NAMESPACE_MUST_EXIST;
  REQUIRE(kvstrata_namespace_open(world.cache.get(), &names, Out(world.space), nullptr) == KVSTRATA_OK);
  const int32_t ids[] = {0, 1, 2, 3, 4};
  auto tokens = Sized<kvstrata_tokens>();
  tokens.ids = ids;
  tokens.count = 5;
  MatchHandle match;
  PlanHandle plan;
  Bytes entries(2 * 1024), keys(2 * 512);
  kvstrata_buffer buffers[2] = {Sized<kvstrata_buffer>(), Sized<kvstrata_buffer>()};
  buffers[0].base = entries.data();
  buffers[0].size_bytes = entries.size();
  buffers[1].stream = 1;
  buffers[1].base = keys.data();
  buffers[1].size_bytes = keys.size();
  auto result = Sized<kvstrata_plan_result>();
  REQUIRE(kvstrata_lookup(world.space.get(), &tokens, nullptr, Out(match), nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_plan_create(match.get(), nullptr, Out(plan), nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_plan_start(plan.get(), buffers, 2, 0, nullptr) == KVSTRATA_OK);
  REQUIRE(kvstrata_plan_wait(plan.get(), UINT64_MAX, &result, nullptr) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_COMPLETE);
  CHECK(result.usable_tokens == 4);
  const double e4m3[] = {1, 448, std::ldexp(1, -9), -0.75, -0.0}, e2m1[] = {0.5, 6, -1, -0.0};
  const int scales[2][7] = {{0, -7, 1, 0, -1, 0, 3}, {}}, key_scales[2][4] = {{0, -2, 3, 0}, {-126, 0, 0, 73}};
  Bytes expected, expected_keys;
  for (int row = 0; row < 2; ++row) {
    for (int i = 0; i < 448; ++i) {
      AppendNumber(false, std::ldexp(e4m3[(i * i + 3 * row) % 5], scales[row][i / 64]), &expected);
    }
    for (int i = 0; i < 64; ++i) AppendNumber(false, i + 100 * row, &expected);
    for (int i = 0; i < 128; ++i) {
      AppendNumber(true, std::ldexp(e2m1[(i / 3 + row) % 4], key_scales[row][i / 32]), &expected_keys);
    }
  }
  CHECK(entries == expected);
  CHECK(keys == expected_keys);
}

}  // namespace kvstrata::test
