// SPDX-License-Identifier: Apache-2.0
// Decoding with the CUDA attention: one query of DeepSeek-V4-Flash's rows by several blocks, in the very bits that one
// block gives.
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/functions.h"
#include "kernels/reference/scalar.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/support/grid_model.h"

namespace kvstrata::kernels::cuda {
namespace {

using kvstrata::test::Rng;

constexpr uint32_t kHeads = 9, kWidth = 512, kRopeDims = 64, kWindow = 64, kPicks = 70;
constexpr uint64_t kEntries = 300, kCodeBytes = 576, kScaleBytes = 8;

std::vector<uint16_t> Numbers(Rng& rng, uint64_t count) {
  std::vector<uint16_t> numbers(count);
  for (uint16_t& number : numbers) {
    number = reference::F32ToBf16(static_cast<float>(rng.Below(2001)) / 1000 - 1);
  }
  return numbers;
}

// A window of bf16 rows, packed entries of which some are picked, and one query.
struct Decode {
  Decode() : rng(72) {
    queries = Numbers(rng, kHeads * kWidth);
    window = Numbers(rng, kWindow * kWidth);
    std::vector<uint16_t> entries = Numbers(rng, kEntries * kWidth);
    codes.resize(kEntries * kCodeBytes);
    scales.resize(kEntries * kScaleBytes);
    kvstrata_pack_rows_args pack{};
    pack.struct_size = sizeof pack;
    pack.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
    pack.width = kWidth;
    pack.rope_dims = kRopeDims;
    pack.source_type = KVSTRATA_KERNELS_BF16;
    pack.rows = kEntries;
    pack.source = entries.data();
    pack.codes = codes.data();
    pack.rope = codes.data() + kWidth - kRopeDims;
    pack.scales = scales.data();
    pack.code_stride_bytes = pack.rope_stride_bytes = kCodeBytes;
    pack.scale_stride_bytes = kScaleBytes;
    REQUIRE(reference::Table()->pack_rows(&pack, nullptr) == kOk);
    for (uint64_t i = 0; i < kPicks; ++i) {
      picks.push_back(rng.Chance(10) ? -1 : static_cast<int32_t>(rng.Below(kEntries)));
    }
  }

  kvstrata_attention_args Args() {
    kvstrata_attention_args a{};
    a.struct_size = sizeof a;
    a.profile = KVSTRATA_KERNELS_PROFILE_Q;
    a.heads = kHeads;
    a.width = kWidth;
    a.rope_dims = kRopeDims;
    a.window = kWindow;
    a.ratio = 4;
    a.pick_count = kPicks;
    a.tokens = 1;
    a.first_position = 4 * kEntries;
    a.queries = queries.data();
    a.query_type = a.window_type = KVSTRATA_KERNELS_BF16;
    a.window_kv = window.data();
    a.window_first = 4 * kEntries + 1 - kWindow;
    a.window_rows = kWindow;
    a.entry_count = kEntries;
    a.entry_format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
    a.packed_entries = {codes.data(), kCodeBytes,    codes.data() + kWidth - kRopeDims,
                        kCodeBytes,   scales.data(), kScaleBytes};
    a.picks = picks.data();
    a.output_type = KVSTRATA_KERNELS_F32;
    return a;
  }

  // On a GPU of so many multiprocessors, with so much of the workspace that is asked for.
  std::vector<float> Run(uint32_t multiprocessors, uint64_t percent, uint64_t* launches) {
    kvstrata::test::SetMultiprocessors(multiprocessors);
    kvstrata_attention_args a = Args();
    std::vector<float> output(kHeads * kWidth);
    a.output = output.data();
    REQUIRE(AttentionWorkspaceBytes(&a, &a.workspace_bytes) == kOk);
    a.workspace_bytes = a.workspace_bytes * percent / 100;
    std::vector<float> workspace(a.workspace_bytes / sizeof(float) + 1);
    a.workspace = workspace.data();
    const uint64_t before = kvstrata::test::GridLaunches();
    REQUIRE(Attention(&a, nullptr) == kOk);
    *launches = kvstrata::test::GridLaunches() - before;
    kvstrata::test::SetMultiprocessors(2);
    return output;
  }

  Rng rng;
  std::vector<uint16_t> queries, window;
  std::vector<uint8_t> codes, scales;
  std::vector<int32_t> picks;
};

}  // namespace

TEST_CASE("attention of few queries is split over blocks, and gives the bits of one block") {
  Decode decode;
  uint64_t launches = 0;
  const std::vector<float> whole = decode.Run(1, 100, &launches);
  CHECK(launches == 1);
  CHECK(decode.Run(132, 100, &launches) == whole);
  CHECK(launches == 2);
  // Without room for the logits one block does it all.
  CHECK(decode.Run(132, 99, &launches) == whole);
  CHECK(launches == 1);
  for (const std::string& fault : kvstrata::test::TakeGridFaults()) FAIL_CHECK(fault);
}

}  // namespace kvstrata::kernels::cuda
