// SPDX-License-Identifier: Apache-2.0
// A GPU for tests without one: runs CUDA kernels (kernels/cuda/grid.h) block by block. Every thread of a block is a
// fibre that runs from one meeting point (barrier, warp exchange) to the next; which of those that can run goes next, a
// seed decides, and which warp runs ahead of all others, as far as the block's barriers let it. A kernel whose threads
// touch the same memory without a barrier between them therefore gives other results for other seeds, and under
// AddressSanitizer every access of it is checked like any other.
//
// What it finds by itself it tells as a fault: threads that end while others wait at a barrier, lanes of a warp that do
// not all come to an exchange, copies that nobody has awaited when their thread ends or that are not aligned, and more
// shared memory than there is or was announced. The grid is given up then. A copy under way (CopyAsync) leaves random
// bytes in its place until it is awaited, or not, as the seed wants.
//
// The model is coarser than the machine: between two meeting points a thread runs alone, so a race in which two threads
// overtake each other within such a stretch is seen only where their order matters as a whole. That is what it can do
// for a missing barrier: one of the two orders is wrong.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/grid.h"

namespace kvstrata::test {

// The order of threads from now on. Shared memory is filled with bytes made from it.
void SeedGridModel(uint64_t seed);

// What a block can have of shared memory; an H100 gives 227 KiB, and every GPU that can be used 99.
void SetMostSharedBytes(uint32_t bytes);
// How many multiprocessors the model says that it has: 2 at first, so that few queries are as rare as many.
void SetMultiprocessors(uint32_t count);

// Whether every second launch from now on has three blocks at most, so that a block has several pieces of work, one
// after the other, as on a GPU only in calls that are too large for tests. For kernels that any grid will do for.
void SetFewBlocks(bool few);

// From now on kernels are only seen, and not run; with an empty function they run again.
using LaunchSeen = std::function<void(const kernels::cuda::Grid& grid, const kernels::cuda::ModelKernel& kernel)>;
void OnLaunch(LaunchSeen seen);

// What was found since the last call.
std::vector<std::string> TakeGridFaults();

// Launches since the program began: a test that wants to see kernels run checks that it has grown.
uint64_t GridLaunches();

// What kernels have read of global memory by Thread::Load since the program began.
uint64_t GridLoadedBytes();

}  // namespace kvstrata::test
