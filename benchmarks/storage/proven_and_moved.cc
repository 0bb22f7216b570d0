// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/storage/proven_and_moved.h"

#include <algorithm>
#include <cstring>

#include "lib/base/checksum.h"
#include "lib/base/copy.h"

namespace kvstrata::benchmarks {
namespace {

// As an engine proves before it moves: what a core's second cache holds beside other things.
constexpr size_t kProvenBytes = 128u << 10;

}  // namespace

ProvenAndMoved::ProvenAndMoved(RawFile& raw)
    : raw_(raw), bytes_(raw.records() * raw.record_bytes()), moved_(HugePages(bytes_)) {
  std::memset(moved_, 0, bytes_);
}

void ProvenAndMoved::Run(uint64_t first, uint64_t count) {
  raw_.ReadFor(first, count, [this](uint64_t number, core::base::ByteView record) {
    std::byte* const to = moved_ + number * record.size();
    for (size_t at = 0; at < record.size(); at += kProvenBytes) {
      const core::base::ByteView piece = record.subspan(at, std::min(kProvenBytes, record.size() - at));
      sums_ += core::base::Checksum(piece, number);
      core::base::CopyPastCaches(to + at, piece.data(), piece.size());
    }
  });
}

// The file has one byte everywhere.
void ProvenAndMoved::Check() const {
  if (sums_ == 0 || moved_[0] == std::byte{0} || std::memcmp(moved_, moved_ + 1, bytes_ - 1) != 0) {
    Fail("not everything was moved");
  }
}

}  // namespace kvstrata::benchmarks
