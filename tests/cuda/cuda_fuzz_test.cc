// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels on the model of a GPU: the cases that every other level is fuzzed with, each under an order of
// threads of its own. KVSTRATA_SEED repeats a run, KVSTRATA_KERNEL_OPS makes it longer.
#include "kernels/cuda/functions.h"
#include "tests/kernels/fuzz_run.h"
#include "tests/support/grid_model.h"

namespace kvstrata::kernels::test {
namespace {

// A change of fibres is slow where AddressSanitizer follows it.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kFewer = 4;
#else
constexpr uint64_t kFewer = 1;
#endif

void FuzzCuda(const char* name, Fuzz fuzz, uint64_t cases) {
  const uint64_t before = kvstrata::test::GridLaunches();
  kvstrata::test::SetFewBlocks(true);
  FuzzFunction(name, fuzz, cases / kFewer, {cuda::Table()});
  kvstrata::test::SetFewBlocks(false);
  CHECK(kvstrata::test::GridLaunches() > before);
  for (const std::string& fault : kvstrata::test::TakeGridFaults()) FAIL_CHECK(fault);
}

}  // namespace

TEST_CASE("cuda: pack_rows") { FuzzCuda("pack_rows", FuzzPackRows, 60); }
TEST_CASE("cuda: unpack_rows") { FuzzCuda("unpack_rows", FuzzUnpackRows, 60); }
TEST_CASE("cuda: quantize_dequantize") { FuzzCuda("quantize_dequantize", FuzzQuantize, 60); }
TEST_CASE("cuda: conversions") { FuzzCuda("conversions", FuzzConvert, 60); }
TEST_CASE("cuda: hadamard") { FuzzCuda("hadamard", FuzzHadamard, 60); }
TEST_CASE("cuda: rope_frequencies") { FuzzCuda("rope_frequencies", FuzzRopeFrequencies, 60); }
TEST_CASE("cuda: rope") { FuzzCuda("rope", FuzzRope, 60); }
TEST_CASE("cuda: rms_norm") { FuzzCuda("rms_norm", FuzzRmsNorm, 60); }
TEST_CASE("cuda: pooling") { FuzzCuda("pool", FuzzPool, 40); }
TEST_CASE("cuda: emit_entries") { FuzzCuda("emit_entries", FuzzEmitEntries, 60); }
TEST_CASE("cuda: compress") { FuzzCuda("compress", FuzzCompress, 40); }
TEST_CASE("cuda: windows") { FuzzCuda("window", FuzzWindow, 60); }
TEST_CASE("cuda: index_scores") { FuzzCuda("index_scores", FuzzIndexScores, 40); }
TEST_CASE("cuda: topk") { FuzzCuda("topk", FuzzTopK, 60); }
TEST_CASE("cuda: attention") { FuzzCuda("attention", FuzzAttention, 30); }
TEST_CASE("cuda: attention where queries do not fit into shared memory") {
  kvstrata::test::SetMostSharedBytes(99u << 10);
  FuzzCuda("attention", FuzzAttention, 6);
  kvstrata::test::SetMostSharedBytes(227u << 10);
}
TEST_CASE("cuda: project") { FuzzCuda("project", FuzzProject, 40); }
TEST_CASE("cuda: pages") { FuzzCuda("move", FuzzMove, 60); }

}  // namespace kvstrata::kernels::test
