// SPDX-License-Identifier: Apache-2.0
// A metadata frame: refused, or no more than the reader's bound, and then stable through another round.
#include "lib/codec/meta_frame.h"
#include "tests/fuzz/layout/target.h"

namespace codec = kvstrata::core::codec;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kBound = 4096;
  const auto plain = codec::DecodeMeta(AsText(data, size), kBound);
  if (!plain.ok()) return 0;
  Promise(plain->size() <= kBound);
  const auto frame = codec::EncodeMeta(*plain);
  Promise(frame.ok() && codec::DecodeMeta(*frame, kBound).value() == *plain);
  return 0;
}
