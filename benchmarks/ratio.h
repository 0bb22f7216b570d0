// SPDX-License-Identifier: Apache-2.0
// How speed is told: the ratio of two times, measured in one run on one machine, alternating, so that a clock that
// drifts drifts for both. Prints one line per ratio, for people and machines:
//
//   ratio NAME VALUE goal GOAL spread LOW..HIGH pairs N
//
// VALUE is the median of the pairs' ratios, LOW and HIGH are their quartiles.
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

namespace kvstrata::benchmarks {

// An odd number of pairs has a median of its own; 11 is the least that the project accepts.
inline constexpr int kPairs = 21;

template <typename Function>
double SecondsOf(Function&& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The line for ratios that were measured already, one of each pair.
inline void PrintRatios(const char* name, const char* goal, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const size_t count = ratios.size();
  std::printf("ratio %s %.3f goal %s spread %.3f..%.3f pairs %d\n", name, ratios[count / 2], goal, ratios[count / 4],
              ratios[count - 1 - count / 4], static_cast<int>(count));
  std::fflush(stdout);
}

// Lets both take their own times, in alternation, and prints the median of the pairs' quotients: seconds of `measured`
// over seconds of `reference`, or with `inverse` the other way round. For work that needs something done before each
// run; else the functions below.
template <typename Measured, typename Reference>
void PrintTimedPairs(const char* name, const char* goal, int pairs, Measured&& measured, Reference&& reference,
                     bool inverse) {
  std::vector<double> ratios;
  for (int pair = 0; pair < pairs; ++pair) {
    // The order changes from pair to pair: whoever comes second finds warmer caches.
    double first = 0;
    double second = 0;
    if (pair % 2 == 0) {
      first = measured();
      second = reference();
    } else {
      second = reference();
      first = measured();
    }
    ratios.push_back(inverse ? second / first : first / second);
  }
  PrintRatios(name, goal, std::move(ratios));
}

// The same for functions that do nothing but what is to be timed. Both run once before.
template <typename Measured, typename Reference>
void PrintPairs(const char* name, const char* goal, Measured&& measured, Reference&& reference, bool inverse) {
  measured();
  reference();
  PrintTimedPairs(
      name, goal, kPairs, [&] { return SecondsOf(measured); }, [&] { return SecondsOf(reference); }, inverse);
}

// What `measured` costs: its time over the time of `reference`. `measured` and `reference` do comparable work and each
// check their own result. `goal` as "<=2.0".
template <typename Measured, typename Reference>
void PrintRatio(const char* name, const char* goal, Measured&& measured, Reference&& reference) {
  PrintPairs(name, goal, measured, reference, false);
}

// What `measured` reaches: the time of `reference` over its time. Where `reference` is a roofline, VALUE is the share
// of it; where it is slower code, VALUE is the speedup. `goal` as ">=0.85".
template <typename Measured, typename Reference>
void PrintShare(const char* name, const char* goal, Measured&& measured, Reference&& reference) {
  PrintPairs(name, goal, measured, reference, true);
}

}  // namespace kvstrata::benchmarks
