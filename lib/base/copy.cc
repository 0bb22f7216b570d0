// SPDX-License-Identifier: Apache-2.0
#include "lib/base/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvstrata::core::base {
namespace {

#if defined(__SSE2__)

constexpr size_t kLine = 64;
constexpr size_t kVector = 16;
constexpr uintptr_t kPage = 4096;
// memcpy begins with `rep movsb` at 4 KiB or more.
constexpr size_t kShort = 2048;
// How far behind the source, within a page, a destination is slow to copy to; doubled.
constexpr uintptr_t kSlowDistance = 64;
// How far ahead of the copy the source is fetched: the processor's own prefetch stops at each page's end.
constexpr size_t kAhead = 1024;

bool LiesBadly(const std::byte* to, const std::byte* from) {
  const uintptr_t distance = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  return distance != 0 && distance < kSlowDistance;
}

// Whole lines from a line's boundary of the destination on; how many bytes that were.
template <typename Store>
size_t CopyLines(std::byte* to, const std::byte* from, size_t bytes, const Store& store) {
  size_t at = 0;
  for (; bytes - at >= kLine; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from + at + kAhead), _MM_HINT_T0);
    const auto* const line = reinterpret_cast<const __m128i*>(from + at);
    const __m128i first = _mm_loadu_si128(line), second = _mm_loadu_si128(line + 1);
    const __m128i third = _mm_loadu_si128(line + 2), fourth = _mm_loadu_si128(line + 3);
    auto* const out = reinterpret_cast<__m128i*>(to + at);
    store(out, first);
    store(out + 1, second);
    store(out + 2, third);
    store(out + 3, fourth);
  }
  return at;
}

template <typename Store>
void CopyAligned(std::byte* to, const std::byte* from, size_t bytes, const Store& store) {
  const size_t before = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, before);
  const size_t lines = CopyLines(to + before, from + before, bytes - before, store);
  std::memcpy(to + before + lines, from + before + lines, bytes - before - lines);
}

// Whole vectors, one piece behind the other: the lines that pieces share are written at once, too.
void CopyDenseVectors(std::byte* to, const std::byte* from, size_t from_stride, size_t bytes, size_t rows) {
  for (size_t row = 0; row < rows; ++row, from += from_stride, to += bytes) {
    for (size_t at = 0; at < bytes; at += kVector) {
      const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), value);
    }
  }
  _mm_sfence();
}

#endif

}  // namespace

void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return;  // neither needs to be an address then
#if defined(__SSE2__)
  if (bytes >= kShort && LiesBadly(to, from)) {
    return CopyAligned(to, from, bytes, [](__m128i* out, __m128i value) { _mm_store_si128(out, value); });
  }
#endif
  std::memcpy(to, from, bytes);
}

void CopyPastCaches(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__SSE2__)
  if (bytes >= kShort) {
    CopyAligned(to, from, bytes, [](__m128i* out, __m128i value) { _mm_stream_si128(out, value); });
    // Such stores keep no order with others by themselves, locks included.
    return _mm_sfence();
  }
#endif
  CopyBytes(to, from, bytes);
}

void CopyRowsPastCaches(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride, size_t bytes,
                        size_t rows) {
#if defined(__SSE2__)
  const bool whole_vectors = bytes % kVector == 0 && reinterpret_cast<uintptr_t>(to) % kVector == 0;
  if (whole_vectors && to_stride == bytes && bytes < kShort && bytes * rows >= kShort) {
    return CopyDenseVectors(to, from, from_stride, bytes, rows);
  }
#endif
  for (size_t row = 0; row < rows; ++row) CopyPastCaches(to + row * to_stride, from + row * from_stride, bytes);
}

}  // namespace kvstrata::core::base
