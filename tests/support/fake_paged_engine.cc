// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_paged_engine.h"

#include <iterator>
#include <utility>
#include <vector>

namespace kvstrata::test {
namespace {

constexpr uint32_t kPageRows[] = {256, 64, 4, 8};
constexpr uint64_t kPageMultiple = 576;  // bytes: what paged V4 kernels want

uint32_t PageRows(const kvstrata_stream& stream, Rng& rng) {
  switch (stream.role) {
    case KVSTRATA_ROLE_CSA_ENTRY: return 256;
    case KVSTRATA_ROLE_INDEX_KEY: return 64;
    case KVSTRATA_ROLE_HCA_ENTRY: return 4;
    case KVSTRATA_ROLE_WINDOW: return 64;
    case KVSTRATA_ROLE_OVERLAP:
    case KVSTRATA_ROLE_OPEN: return 8;
    default: return kPageRows[rng.Below(std::size(kPageRows))];
  }
}

Geometry PagedGeometry(const kvstrata_stream& stream, uint64_t /*rows*/, Rng& rng) {
  Geometry geometry;
  geometry.form = KVSTRATA_FORM_PAGES;
  geometry.rows_per_page = PageRows(stream, rng);
  geometry.page_multiple = kPageMultiple;
  geometry.page_guard = 32 * rng.Below(3);
  geometry.page_id_bytes = rng.Chance(50) ? 4 : 8;
  geometry.spare_pages = rng.Below(4);
  geometry.planar = true;
  switch (stream.packing) {
    case KVSTRATA_PACKING_FP8_ROW_584: geometry.columns = {576, 8}; break;
    case KVSTRATA_PACKING_FP4_KEY_68: geometry.columns = {64, 4}; break;
    case KVSTRATA_PACKING_F32: geometry.columns = {stream.row_bytes / 2, stream.row_bytes / 2}; break;
    default: geometry.planar = false; break;
  }
  if (rng.Chance(20)) geometry.planar = false;  // the same columns, interleaved row by row
  return geometry;
}

kvstrata_stream Stream(int32_t kind, int32_t role, uint32_t layer, uint32_t ratio, uint32_t row_bytes,
                       uint32_t state_rows, int32_t packing) {
  auto stream = Sized<kvstrata_stream>();
  stream.kind = kind;
  stream.role = role;
  stream.layer = layer;
  stream.ratio = ratio;
  stream.row_bytes = row_bytes;
  stream.state_rows = state_rows;
  stream.packing = packing;
  stream.flags = KVSTRATA_STREAM_EXACT;
  return stream;
}

constexpr uint32_t kWindow = 8;  // tokens

std::vector<kvstrata_stream> SmallStreams() {
  const int32_t rows = KVSTRATA_STREAM_ROWS;
  const int32_t state = KVSTRATA_STREAM_STATE;
  const int32_t packed = KVSTRATA_PACKING_FP8_ROW_584;
  const int32_t f32 = KVSTRATA_PACKING_F32;
  return {
      Stream(state, KVSTRATA_ROLE_WINDOW, 0, 1, 584, kWindow, packed),
      Stream(rows, KVSTRATA_ROLE_CSA_ENTRY, 1, 4, 584, 0, packed),
      Stream(rows, KVSTRATA_ROLE_INDEX_KEY, 1, 4, 68, 0, KVSTRATA_PACKING_FP4_KEY_68),
      Stream(state, KVSTRATA_ROLE_WINDOW, 1, 1, 584, kWindow, packed),
      Stream(state, KVSTRATA_ROLE_OVERLAP, 1, 4, 256, 4, f32),
      Stream(state, KVSTRATA_ROLE_OPEN, 1, 4, 512, 3, f32),
      Stream(rows, KVSTRATA_ROLE_HCA_ENTRY, 2, 16, 584, 0, packed),
      Stream(state, KVSTRATA_ROLE_WINDOW, 2, 1, 584, kWindow, packed),
      Stream(state, KVSTRATA_ROLE_OPEN, 2, 16, 256, 15, f32),
  };
}

EngineKind MakeKind(const char* name, LayoutHandle layout) {
  EngineKind kind;
  kind.name = name;
  kind.layout = ModelLayout::Read(std::move(layout));
  kind.geometry = PagedGeometry;
  return kind;
}

}  // namespace

EngineKind PagedEngine(const std::string& preset) {
  LayoutHandle layout;
  kvstrata_layout_from_preset(preset.c_str(), nullptr, Out(layout), nullptr);
  return MakeKind("paged", std::move(layout));
}

EngineKind SmallPagedEngine() {
  const std::vector<kvstrata_stream> streams = SmallStreams();
  auto desc = Sized<kvstrata_layout_desc>();
  desc.block_tokens = 32;
  desc.profile = KVSTRATA_PROFILE_S;
  desc.replay_mode = KVSTRATA_REPLAY_FULL;
  desc.replay_window = kWindow;
  desc.replay_layers = 3;
  desc.streams = streams.data();
  desc.stream_count = streams.size();
  LayoutHandle layout;
  kvstrata_layout_create(&desc, Out(layout), nullptr);
  return MakeKind("small_paged", std::move(layout));
}

}  // namespace kvstrata::test
