// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_ring_engine.h"

#include <utility>

namespace kvstrata::test {
namespace {

Geometry RingGeometry(const kvstrata_stream& stream, uint64_t rows, Rng& rng) {
  Geometry geometry;
  if (IsRows(stream)) {
    // HCA entries, few and far between, lie in slots of a shared pool; the rest linear, in rows padded to 16 bytes.
    if (stream.role == KVSTRATA_ROLE_HCA_ENTRY) {
      geometry.form = KVSTRATA_FORM_SLOTS;
      geometry.spare_pages = 3;
      geometry.page_id_bytes = rng.Chance(50) ? 4 : 8;
    }
    geometry.row_padding = rng.Chance(50) ? 0 : (16 - stream.row_bytes % 16) % 16;
    return geometry;
  }
  geometry.form = KVSTRATA_FORM_RING;
  geometry.capacity_rows = rng.Chance(50) ? rows : rows * 2 + rng.Below(3);
  geometry.ring_origin = rng.Below(geometry.capacity_rows);
  // Compressor rows come as u and z, in buffers of their own; windows as 576 bytes of data and 8 of scales.
  if (stream.packing == KVSTRATA_PACKING_F32) {
    geometry.columns = {stream.row_bytes / 2, stream.row_bytes / 2};
    geometry.planar = rng.Chance(50);
  } else if (stream.packing == KVSTRATA_PACKING_FP8_ROW_584 && rng.Chance(50)) {
    geometry.columns = {576, 8};
    geometry.planar = true;
  }
  return geometry;
}

}  // namespace

EngineKind RingEngine() {
  LayoutHandle layout;
  kvstrata_layout_from_preset("deepseek-v4-flash", nullptr, Out(layout), nullptr);
  EngineKind kind;
  kind.name = "ring";
  kind.layout = ModelLayout::Read(std::move(layout));
  kind.restart_multiple = kRingRestartTokens;
  kind.geometry = RingGeometry;
  return kind;
}

}  // namespace kvstrata::test
