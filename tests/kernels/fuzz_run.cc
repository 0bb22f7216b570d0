// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/fuzz_run.h"

#include <algorithm>

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

void CheckShares(const Shares& shares) {
  for (const auto& [name, share] : shares) {
    if (name.find("rounded") == std::string::npos || share.compared < kShareLeast) continue;
    INFO(name << ": " << share.different << " of " << share.compared << " differ");
    CHECK(static_cast<double>(share.different) <= kShareMost * static_cast<double>(share.compared));
  }
}

}  // namespace

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

void FuzzFunction(const char* name, Fuzz fuzz, uint64_t cases, const std::vector<const kvstrata_kernels*>& levels) {
  const uint64_t seed = kvstrata::test::TestSeed(name, 20261130);
  const uint64_t count = kvstrata::test::EnvironmentNumber("KVSTRATA_KERNEL_OPS", cases);
  Shares shares;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t case_seed = kvstrata::test::Mix(seed, i);
    Case want(Reference(), case_seed, nullptr);
    fuzz(want);
    for (const kvstrata_kernels* level : levels) {
      const std::string difference = RunCase(fuzz, case_seed, want, *level, shares);
      INFO(name << ", case " << i << ", level " << level->name << ": " << difference);
      CHECK(difference.empty());
    }
  }
  CheckShares(shares);
}

}  // namespace kvstrata::kernels::test
