// SPDX-License-Identifier: Apache-2.0
// The whole C API: the bytes are a sequence of calls with sane and hostile arguments (session.h). Promised is that
// nothing crashes, that every answer is a status, and that a call that fails leaves its outputs alone.
#include "tests/fuzz/capi/session.h"
#include "tests/fuzz/layout/target.h"

// A size that nobody can allocate is NULL, as it is without a sanitizer.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvstrata::fuzz::ByteSource in(data, size);
  kvstrata::fuzz::Session session(in);
  while (!in.done()) session.Step();
  return 0;
}
