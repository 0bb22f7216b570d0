// SPDX-License-Identifier: Apache-2.0
// What no restore can do without: bytes are read, their checksums are taken, and they are moved. As one thread reaches
// that knows nothing else: the ceiling of restores.
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "benchmarks/storage/drive.h"

namespace kvstrata::benchmarks {

class ProvenAndMoved {
 public:
  // Of a file that was written. `raw` outlives this.
  explicit ProvenAndMoved(RawFile& raw);
  // So many records, from `first` on; nothing is in flight when it returns.
  void Run(uint64_t first, uint64_t count);
  // Ends the program where not every record has been moved.
  void Check() const;

 private:
  RawFile& raw_;
  const size_t bytes_;
  std::byte* const moved_;
  uint64_t sums_ = 0;
};

}  // namespace kvstrata::benchmarks
