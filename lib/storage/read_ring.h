// SPDX-License-Identifier: Apache-2.0
// Reads that the kernel carries out while their thread goes on: io_uring behind an interface, so that tests can put
// another in its place, or none.
//
// Thread rule: Wake on any thread; everything else on one thread, which also stays alive as long as reads are in
// flight: the kernel cancels those of a thread that ends.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"

namespace kvstrata::core::storage {

class ReadRing {
 public:
  virtual ~ReadRing() = default;

  // Notes a read; the next Begin or Wait begins it. The pieces, their array included, stay valid until it is done. The
  // caller has at most as many in hand as the ring was made for.
  virtual void Add(int fd, std::span<const iovec> to, uint64_t offset, uint64_t number) = 0;
  // Begins what was noted, as far as the ring takes it now; a Wait begins the rest.
  virtual void Begin() = 0;
  // Begins what was noted, waits until something is done or Wake was called, and calls `done` with the number and the
  // bytes read (a negative errno when it failed) for each that is. False when the ring takes no more reads: those that
  // were not begun have been done with an error.
  virtual bool Wait(absl::FunctionRef<void(uint64_t number, int64_t result)> done) = 0;
  // A Wait that runs, or the next one, returns.
  virtual void Wake() = 0;
};

// For `depth` reads at one time; none where the kernel has no io_uring, or something forbids it to this process.
std::unique_ptr<ReadRing> MakeIoUring(uint32_t depth);

}  // namespace kvstrata::core::storage
