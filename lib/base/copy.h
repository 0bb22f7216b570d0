// SPDX-License-Identifier: Apache-2.0
// Copies of rows and records: a few bytes or many megabytes, between places of any alignment that do not overlap.
//
// memcpy alone will not do. For some kilobytes to a megabyte glibc (2.36) uses `rep movsb`, which on AMD's Zen 3 moves
// 2 GB/s instead of 35 when the destination lies 1 to 31 bytes behind the source, counted within a page. Records lie in
// whole pages, and what malloc gives for large sizes begins 16 bytes behind a page's boundary: just so.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>

namespace kvstrata::core::base {

// For what is read again soon.
void CopyBytes(std::byte* to, const std::byte* from, size_t bytes);

// For destinations that are larger than the caches: large copies are written past them, which saves reading what is
// overwritten, and leaves in the caches what is there. What was written is seen by others as after any other store.
void CopyPastCaches(std::byte* to, const std::byte* from, size_t bytes);

// The same for `rows` pieces of `bytes` each, so far apart. Short ones are written past the caches as well where they
// come one behind the other.
void CopyRowsPastCaches(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride, size_t bytes,
                        size_t rows);

}  // namespace kvstrata::core::base
