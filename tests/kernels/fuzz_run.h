// SPDX-License-Identifier: Apache-2.0
// Runs the cases of fuzz_case.h: the reference against levels, and a level in one piece against itself in several.
//
//   KVSTRATA_SEED        the seed of the run
//   KVSTRATA_KERNEL_OPS  cases per function, for long runs by hand
//
// Thread rule: one thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/kernels/fuzz_case.h"

namespace kvstrata::kernels::test {

using Fuzz = void (*)(Case&);

// How many numbers of a kind were compared by tolerance, and how many were not the same bits.
struct Share {
  uint64_t compared = 0, different = 0;
};

using Shares = std::map<std::string, Share>;

// One case on one level, in one piece and in several, where `want` is the reference's run of it; "" or what is wrong.
std::string RunCase(Fuzz fuzz, uint64_t seed, const Case& want, const kvstrata_kernels& level, Shares& shares);

// `cases` of them on all levels, checked.
void FuzzFunction(const char* name, Fuzz fuzz, uint64_t cases, const std::vector<const kvstrata_kernels*>& levels);

}  // namespace kvstrata::kernels::test
