// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/library/outcome.h"

#include <algorithm>
#include <cstring>

namespace kvstrata::kernels::cuda {
namespace {

template <size_t N>
void CopyText(const std::string& from, char (&to)[N]) {
  const size_t size = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), size);
  std::memset(to + size, 0, N - size);
}

}  // namespace

kvstrata_status Report(const Outcome& outcome, kvstrata_error* error) {
  if (outcome.ok() || error == nullptr) return outcome.code;
  const uint32_t size = error->struct_size;
  if (size < sizeof size || size > kMaxStructSize) return outcome.code;
  kvstrata_error out;
  std::memset(&out, 0, sizeof out);
  out.struct_size = size;
  out.code = outcome.code;
  out.native_code = outcome.native_code;
  CopyText(outcome.field, out.field);
  CopyText(outcome.message, out.message);
  const size_t known = std::min<size_t>(size, sizeof out);
  std::memcpy(error, &out, known);
  std::memset(reinterpret_cast<unsigned char*>(error) + known, 0, size - known);
  return outcome.code;
}

}  // namespace kvstrata::kernels::cuda
