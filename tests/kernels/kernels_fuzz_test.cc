// SPDX-License-Identifier: Apache-2.0
// Differential fuzz of the kernel table: the reference against every level of this machine, for every function
// (fuzz_case.h says how). A failure names the function's case and the seed that repeats it.
//
//   KVSTRATA_SEED        the seed of the run
//   KVSTRATA_KERNEL_OPS  cases per function, for long runs by hand
#include <algorithm>
#include <map>

#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {
namespace {

double Value(const Output& output, size_t index) {
  if (output.element == Element::kFloat) {
    float value;
    std::memcpy(&value, output.data + index * sizeof value, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, output.data + index * sizeof bits, sizeof bits);
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

size_t ElementBytes(const Output& output) {
  return output.element == Element::kByte ? 1 : output.element == Element::kFloat ? 4 : 2;
}

// How many numbers of a kind were compared by tolerance, and how many were not the same bits.
struct Share {
  uint64_t compared = 0, different = 0;
};

// "" if `got` is what `want` allows, else what is wrong. `exact`: bits, whatever the output says.
std::string Difference(const Output& want, const Output& got, bool exact, Share* share) {
  if (want.bytes != got.bytes) return want.name + ": another size";
  const size_t size = ElementBytes(want);
  std::vector<double> differences(want.spans.empty() ? 0 : want.bytes / size);
  for (size_t i = 0; i < want.bytes / size; ++i) {
    const bool tolerant = !exact && want.match == Match::kTolerance && i < want.tolerance.size();
    if (tolerant && share != nullptr) ++share->compared;
    if (std::memcmp(want.data + i * size, got.data + i * size, size) == 0) continue;
    const std::string where = want.name + "[" + std::to_string(i) + "] ";
    if (want.element == Element::kByte) return where + "differs";
    const double a = Value(want, i);
    const double b = Value(got, i);
    if (want.match != Match::kBits && std::isnan(a) && std::isnan(b)) continue;
    const double allowed = tolerant ? want.tolerance[i] : 0;
    if (!tolerant || allowed == 0 || !(std::fabs(a - b) <= allowed)) {
      return where + std::to_string(a) + " became " + std::to_string(b) + ", allowed " + std::to_string(allowed);
    }
    if (share != nullptr) ++share->different;
    if (!differences.empty()) differences[i] = a - b;
  }
  for (const SpanBound& span : want.spans) {
    if (exact) break;
    double squares = 0;
    for (uint64_t i = span.begin; i < span.begin + span.count; ++i) squares += differences[i] * differences[i];
    const double mean = std::sqrt(squares / static_cast<double>(span.count));
    if (mean <= span.root_mean_square) continue;
    return want.name + " from " + std::to_string(span.begin) + ": root mean square " + std::to_string(mean) +
           ", allowed " + std::to_string(span.root_mean_square);
  }
  return "";
}

// The share of each rounded output that may differ between levels at all. A last bit of fp32 flips a bf16 rounding in
// 2^-16 of cases per ulp of difference; through a Hadamard transform of 128 one flip may flip a few more.
constexpr double kShareMost = 0.02;
constexpr uint64_t kShareLeast = 20000;  // compared numbers, before a share means anything

using Shares = std::map<std::string, Share>;

// What is wrong with `got`, or "".
std::string Compare(const Case& want, const Case& got, bool exact, Shares& shares) {
  if (!got.problems().empty()) return got.problems().front();
  if (want.outputs().size() != got.outputs().size()) return "another number of outputs";
  for (size_t i = 0; i < want.outputs().size(); ++i) {
    const Output& output = want.outputs()[i];
    if (!exact && output.match == Match::kSameLevelOnly) continue;
    Share* share = exact ? nullptr : &shares[got.k.name + (": " + output.name)];
    const std::string difference = Difference(output, got.outputs()[i], exact, share);
    if (!difference.empty()) return difference;
  }
  return "";
}

using Fuzz = void (*)(Case&);

// One case on one level, in one piece and in several; "" or what is wrong.
std::string RunCase(Fuzz fuzz, uint64_t seed, const Case& want, const kvstrata_kernels& level, Shares& shares) {
  Case got(level, seed, nullptr);
  fuzz(got);
  const std::string difference = Compare(want, got, false, shares);
  if (!difference.empty()) return difference;
  Rng cuts(kvstrata::test::Mix(seed, 1));
  Case cut(level, seed, &cuts);
  fuzz(cut);
  const std::string depends = Compare(got, cut, true, shares);
  return depends.empty() ? "" : "in pieces: " + depends;
}

void CheckShares(const Shares& shares) {
  for (const auto& [name, share] : shares) {
    if (name.find("rounded") == std::string::npos || share.compared < kShareLeast) continue;
    INFO(name << ": " << share.different << " of " << share.compared << " differ");
    CHECK(static_cast<double>(share.different) <= kShareMost * static_cast<double>(share.compared));
  }
}

void FuzzFunction(const char* name, Fuzz fuzz, uint64_t cases) {
  const uint64_t seed = kvstrata::test::TestSeed(name, 20261130);
  const uint64_t count = kvstrata::test::EnvironmentNumber("KVSTRATA_KERNEL_OPS", cases);
  Shares shares;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t case_seed = kvstrata::test::Mix(seed, i);
    Case want(Reference(), case_seed, nullptr);
    fuzz(want);
    for (const kvstrata_kernels* level : Levels()) {
      const std::string difference = RunCase(fuzz, case_seed, want, *level, shares);
      INFO(name << ", case " << i << ", level " << level->name << ": " << difference);
      CHECK(difference.empty());
    }
  }
  CheckShares(shares);
}

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

TEST_CASE("pack_rows: equal floats, equal bytes") { FuzzFunction("pack_rows", FuzzPackRows, 600); }
TEST_CASE("unpack_rows: the same floats") { FuzzFunction("unpack_rows", FuzzUnpackRows, 600); }
TEST_CASE("quantize_dequantize: the same floats") { FuzzFunction("quantize_dequantize", FuzzQuantize, 600); }
TEST_CASE("conversions: the same bits") { FuzzFunction("conversions", FuzzConvert, 600); }
TEST_CASE("hadamard: the same floats") { FuzzFunction("hadamard", FuzzHadamard, 600); }
TEST_CASE("rope_frequencies: within 4 half ulps") { FuzzFunction("rope_frequencies", FuzzRopeFrequencies, 200); }
TEST_CASE("rope: within its tolerance") { FuzzFunction("rope", FuzzRope, 600); }
TEST_CASE("rms_norm: within its tolerance") { FuzzFunction("rms_norm", FuzzRmsNorm, 600); }
TEST_CASE("pooling: within its tolerance, state exact") { FuzzFunction("pool", FuzzPool, 300); }
TEST_CASE("emit_entries: within its tolerance") { FuzzFunction("emit_entries", FuzzEmitEntries, 600); }
TEST_CASE("compress: the three calls") { FuzzFunction("compress", FuzzCompress, 300); }
TEST_CASE("windows: the same bytes") { FuzzFunction("window", FuzzWindow, 600); }
TEST_CASE("pages: the same bytes") { FuzzFunction("move", FuzzMove, 400); }
TEST_CASE("index_scores: within its tolerance") { FuzzFunction("index_scores", FuzzIndexScores, 300); }
TEST_CASE("topk: the same picks") { FuzzFunction("topk", FuzzTopK, 600); }
TEST_CASE("attention: within its tolerance") { FuzzFunction("attention", FuzzAttention, 200); }
TEST_CASE("project: the same bits") { FuzzFunction("project", FuzzProject, 300); }

}  // namespace kvstrata::kernels::test
