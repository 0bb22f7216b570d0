// SPDX-License-Identifier: Apache-2.0
// Prints the rooflines themselves, once in absolute numbers to be compared with what is known of the processor, and
// as ratios to each other that hold on every clock: a loop that the machine runs slower than its own width allows
// would make every kernel look better than it is.
#include <algorithm>
#include <cstdio>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"

namespace {

namespace b = kvstrata::benchmarks;

constexpr size_t kBytes = size_t{256} << 20;  // eight times the largest last-level cache that one core may use here
constexpr double kFlop = 4e9;

template <typename Function>
double BestOf(int tries, Function&& function) {
  double best = b::SecondsOf(function);
  for (int i = 1; i < tries; ++i) best = std::min(best, b::SecondsOf(function));
  return best;
}

void PrintRate(const char* name, double amount, const char* unit, double seconds) {
  std::printf("%-24s %8.1f %s\n", name, amount / seconds / 1e9, unit);
}

}  // namespace

int main() {
  const b::HugeBuffer source(kBytes);
  const b::HugeBuffer destination(kBytes);
  const auto read = [&] { b::ReadPass(source.as(), kBytes); };
  const auto copy = [&] { b::CopyPass(destination.as(), source.as(), kBytes / 2); };
  const auto quarter = [&] { b::ReadWritePass(source.as(), kBytes / 4 * 3, destination.as(), kBytes / 4); };
  const double bytes = static_cast<double>(kBytes);
  PrintRate("read", bytes, "GB/s", BestOf(5, read));
  PrintRate("memcpy, both ways", bytes, "GB/s", BestOf(5, copy));
  PrintRate("read 3, write 1", bytes, "GB/s", BestOf(5, quarter));
  b::PrintRatio("roofline_copy_over_read", "<=1.3", copy, read);
  b::PrintRatio("roofline_read_write_over_read", "<=2.0", quarter, read);
  if (b::HasFma256()) PrintRate("fp32 fma, 256 bit", kFlop, "GFLOP/s", BestOf(5, [] { b::Fma256(kFlop); }));
  if (!b::HasFma512()) return 0;
  PrintRate("fp32 fma, 512 bit", kFlop, "GFLOP/s", BestOf(5, [] { b::Fma512(kFlop); }));
  b::PrintShare(
      "roofline_fma512_over_fma256", ">=1.0", [] { b::Fma512(kFlop); }, [] { b::Fma256(kFlop); });
  if (!b::HasDotBf16()) return 0;
  PrintRate("vdpbf16ps", kFlop, "GFLOP/s", BestOf(5, [] { b::DotBf16(kFlop); }));
  // Twice the products an instruction, at the same rate of instructions.
  b::PrintShare(
      "roofline_bf16_over_fma512", ">=1.9", [] { b::DotBf16(kFlop); }, [] { b::Fma512(kFlop); });
  return 0;
}
