// SPDX-License-Identifier: Apache-2.0
// Differential fuzz of the kernel table: the reference against every level of this machine, for every function
// (fuzz_case.h and fuzz_run.h say how). A failure names the function's case and the seed that repeats it.
#include <cmath>

#include "tests/kernels/fuzz_run.h"

namespace kvstrata::kernels::test {
namespace {

// --------------------------------------------------------------------------------------------------- planted faults

// A last bit, in one element of one row.
int32_t PackWithFault(const kvstrata_pack_rows_args* args, void* stream) {
  const int32_t status = Reference().pack_rows(args, stream);
  if (status == 0 && args->rows > 2) args->codes[2 * args->code_stride_bytes] ^= 1;
  return status;
}

// Writes beside a row.
int32_t ProjectWithFault(const kvstrata_project_args* args, void* stream) {
  const int32_t status = Reference().project(args, stream);
  if (status == 0 && args->tokens > 1 && args->y_stride > args->outputs) args->y[args->outputs] = 1;
  return status;
}

// Forgets the oldest row of a window.
int32_t AttendWithFault(const kvstrata_attention_args* args, void* stream) {
  kvstrata_attention_args a = *args;
  if (a.window > 1) --a.window;
  return Reference().attention(&a, stream);
}

// Right, but not the same in pieces: a difference within the tolerance that depends on the rows of the call.
int32_t NormWithFault(const kvstrata_rms_norm_args* args, void* stream) {
  const int32_t status = Reference().rms_norm(args, stream);
  if (status == 0 && args->rows > 1) args->destination[0] = std::nextafter(args->destination[0], 0.0f);
  return status;
}

// Takes an entry too many where there are fewer than k.
int32_t PickWithFault(const kvstrata_topk_args* args, void* stream) {
  const int32_t status = Reference().topk(args, stream);
  if (status == 0 && args->tokens != 0 && args->indices[args->k - 1] == -1) args->indices[args->k - 1] = 0;
  return status;
}

bool Found(Fuzz fuzz, const kvstrata_kernels& faulty) {
  Shares shares;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Case want(Reference(), seed, nullptr);
    fuzz(want);
    if (!RunCase(fuzz, seed, want, faulty, shares).empty()) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("planted faults are found") {
  kvstrata_kernels faulty = Reference();
  faulty.level = KVSTRATA_KERNELS_LEVEL_CPU;
  faulty.name = "faulty";
  faulty.pack_rows = PackWithFault;
  faulty.project = ProjectWithFault;
  faulty.attention = AttendWithFault;
  faulty.rms_norm = NormWithFault;
  faulty.topk = PickWithFault;
  CHECK(Found(FuzzPackRows, faulty));
  CHECK(Found(FuzzProject, faulty));
  CHECK(Found(FuzzAttention, faulty));
  CHECK(Found(FuzzRmsNorm, faulty));
  CHECK(Found(FuzzTopK, faulty));
  CHECK_FALSE(Found(FuzzMove, faulty));
}

TEST_CASE("pack_rows: equal floats, equal bytes") { FuzzFunction("pack_rows", FuzzPackRows, 600, Levels()); }
TEST_CASE("unpack_rows: the same floats") { FuzzFunction("unpack_rows", FuzzUnpackRows, 600, Levels()); }
TEST_CASE("quantize_dequantize: the same floats") { FuzzFunction("quantize_dequantize", FuzzQuantize, 600, Levels()); }
TEST_CASE("conversions: the same bits") { FuzzFunction("conversions", FuzzConvert, 600, Levels()); }
TEST_CASE("hadamard: the same floats") { FuzzFunction("hadamard", FuzzHadamard, 600, Levels()); }
TEST_CASE("rope_frequencies: within 4 half ulps") {
  FuzzFunction("rope_frequencies", FuzzRopeFrequencies, 200, Levels());
}
TEST_CASE("rope: within its tolerance") { FuzzFunction("rope", FuzzRope, 600, Levels()); }
TEST_CASE("rms_norm: within its tolerance") { FuzzFunction("rms_norm", FuzzRmsNorm, 600, Levels()); }
TEST_CASE("pooling: within its tolerance, state exact") { FuzzFunction("pool", FuzzPool, 300, Levels()); }
TEST_CASE("emit_entries: within its tolerance") { FuzzFunction("emit_entries", FuzzEmitEntries, 600, Levels()); }
TEST_CASE("compress: the three calls") { FuzzFunction("compress", FuzzCompress, 300, Levels()); }
TEST_CASE("windows: the same bytes") { FuzzFunction("window", FuzzWindow, 600, Levels()); }
TEST_CASE("pages: the same bytes") { FuzzFunction("move", FuzzMove, 400, Levels()); }
TEST_CASE("index_scores: within its tolerance") { FuzzFunction("index_scores", FuzzIndexScores, 300, Levels()); }
TEST_CASE("topk: the same picks") { FuzzFunction("topk", FuzzTopK, 600, Levels()); }
TEST_CASE("attention: within its tolerance") { FuzzFunction("attention", FuzzAttention, 200, Levels()); }
TEST_CASE("project: the same bits") { FuzzFunction("project", FuzzProject, 300, Levels()); }

}  // namespace kvstrata::kernels::test
