// SPDX-License-Identifier: Apache-2.0
// Windows and pages against memcpy of the same bytes. Pages lie in memory in a shuffled order, as they do in an engine
// that has run for a while; block and pages together are beyond any cache. memcpy of as many bytes is the ceiling, or
// nearly: the reference is made of memcpys too, and has 0.6 to 0.9 of it, so five times the reference would be three
// times a memcpy and more. The lines `reference_of_memcpy` show it: the goal would be in reach at 0.2 and below. Every
// result is compared with the reference's.
//
// Thread rule: one thread.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

using namespace kvstrata::benchmarks;
using kvstrata::kernels::Get;

constexpr uint64_t kRowBytes = 584;
constexpr uint64_t kPageRows = 64;
constexpr uint64_t kPages = 3072;
constexpr uint64_t kPageBytes = 37440;  // 64 rows of 584, padded to a multiple of 576
constexpr uint64_t kRows = kPages * kPageRows;
// Window of one layer.
constexpr uint64_t kWindow = 128;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "movement benchmark: %s\n", what);
  std::exit(1);
}

struct World {
  HugeBuffer pages{kPages * kPageBytes, 3};
  HugeBuffer block{kRows * kRowBytes, 5};
  std::vector<int32_t> ids = std::vector<int32_t>(kPages);

  World() {
    std::iota(ids.begin(), ids.end(), 0);
    uint64_t state = 9;
    const auto next = [&] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[next() % (i + 1)]);
    for (size_t i = 0; i < pages.bytes(); i += 4) pages.as()[i] = static_cast<uint8_t>(next());
    for (size_t i = 0; i < block.bytes(); i += 4) block.as()[i] = static_cast<uint8_t>(next());
  }
};

kvstrata_move_args MoveArgs(const World& w, const std::vector<kvstrata_segment>& segments) {
  kvstrata_move_args a{};
  a.struct_size = sizeof a;
  a.page_id_type = KVSTRATA_KERNELS_INT32;
  a.rows = kRows;
  a.rows_per_page = kPageRows;
  a.page_ids = w.ids.data();
  a.page_id_count = kPages;
  a.page_limit = kPages;
  a.pages = w.pages.as<void>();
  a.page_stride_bytes = kPageBytes;
  a.block = w.block.as<void>();
  a.segments = segments.data();
  a.segment_count = segments.size();
  return a;
}

template <typename Function, typename A>
void Check(Function kernel, Function reference, const A& args, const HugeBuffer& out) {
  if (reference(&args, nullptr) != 0) Fail("the reference failed");
  const std::vector<uint8_t> expected(out.as(), out.as() + out.bytes());
  for (size_t i = 0; i < out.bytes(); i += 64) out.as()[i] ^= 0x55;
  if (kernel(&args, nullptr) != 0) Fail("a call failed");
  // Bytes that no segment names keep the change.
  size_t wrong = 0;
  for (size_t i = 0; i < out.bytes(); ++i) {
    const bool padding = out.bytes() == kPages * kPageBytes && i % kPageBytes >= kPageRows * kRowBytes;
    wrong += !padding && out.as()[i] != expected[i];
  }
  if (wrong != 0) Fail("the result is not the reference's");
}

void Pages(const World& w, const kvstrata_kernels& k, const kvstrata_kernels& r, const char* layout,
           const std::vector<kvstrata_segment>& segments) {
  const kvstrata_move_args a = MoveArgs(w, segments);
  char name[64];
  Check(k.gather_rows, r.gather_rows, a, w.block);
  std::snprintf(name, sizeof name, "gather_rows_%s_of_memcpy", layout);
  PrintShare(
      name, ">=0.80", [&] { k.gather_rows(&a, nullptr); },
      [&] { CopyPass(w.block.as(), w.pages.as(), kRows * kRowBytes); });
  std::snprintf(name, sizeof name, "gather_rows_%s_vs_reference", layout);
  PrintShare(
      name, ">=5.0", [&] { k.gather_rows(&a, nullptr); }, [&] { r.gather_rows(&a, nullptr); });
  std::snprintf(name, sizeof name, "gather_rows_%s_reference_of_memcpy", layout);
  PrintShare(
      name, "<=0.20", [&] { r.gather_rows(&a, nullptr); },
      [&] { CopyPass(w.block.as(), w.pages.as(), kRows * kRowBytes); });
  Check(k.scatter_rows, r.scatter_rows, a, w.pages);
  std::snprintf(name, sizeof name, "scatter_rows_%s_of_memcpy", layout);
  PrintShare(
      name, ">=0.80", [&] { k.scatter_rows(&a, nullptr); },
      [&] { CopyPass(w.pages.as(), w.block.as(), kRows * kRowBytes); });
  std::snprintf(name, sizeof name, "scatter_rows_%s_vs_reference", layout);
  PrintShare(
      name, ">=5.0", [&] { k.scatter_rows(&a, nullptr); }, [&] { r.scatter_rows(&a, nullptr); });
  std::snprintf(name, sizeof name, "scatter_rows_%s_reference_of_memcpy", layout);
  PrintShare(
      name, "<=0.20", [&] { r.scatter_rows(&a, nullptr); },
      [&] { CopyPass(w.pages.as(), w.block.as(), kRows * kRowBytes); });
}

// The windows of many layers, one after the other, each cut in two by the ring's end; against one memcpy per window.
// The cut is at 24 rows, a multiple of 64 bytes: where source and destination differ modulo 64, memcpy itself loses a
// fifth.
void Windows(const World& w, const kvstrata_kernels& k) {
  constexpr uint64_t kWindows = kRows / kWindow;
  static_assert(kWindows * kWindow * kRowBytes <= kPages * kPageBytes);
  const auto each = [&](auto function) {
    for (uint64_t i = 0; i < kWindows; ++i) {
      kvstrata_window_args a{};
      a.struct_size = sizeof a;
      a.row_bytes = kRowBytes;
      a.capacity = kWindow;
      a.position = 1024 + 24;
      a.rows = kWindow;
      a.ring = w.pages.as() + i * kWindow * kRowBytes;
      a.linear = w.block.as() + i * kWindow * kRowBytes;
      if (function(&a, nullptr) != 0) Fail("a call failed");
    }
  };
  const size_t bytes = kRows * kRowBytes;
  each(k.window_export);
  const std::vector<uint8_t> expected(w.pages.as(), w.pages.as() + bytes);
  std::memset(w.pages.as(), 0, bytes);
  each(k.window_import);
  if (std::memcmp(w.pages.as(), expected.data(), bytes) != 0) Fail("import is not the inverse of export");
  const auto copy = [&](uint8_t* to, const uint8_t* from) {
    constexpr size_t kBytes = kWindow * kRowBytes;
    for (size_t i = 0; i < bytes; i += kBytes) CopyPass(to + i, from + i, kBytes);
  };
  PrintShare(
      "window_export_of_memcpy", ">=0.80", [&] { each(k.window_export); }, [&] { copy(w.block.as(), w.pages.as()); });
  PrintShare(
      "window_append_of_memcpy", ">=0.80", [&] { each(k.window_append); }, [&] { copy(w.pages.as(), w.block.as()); });
}

}  // namespace

int main() {
  const World world;
  const kvstrata_kernels& reference = *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  const kvstrata_kernels* best = Get(KVSTRATA_KERNELS_LEVEL_CPU);
  if (best == nullptr) Fail("this machine has no cpu level");
  std::printf("level %s\n", best->name);
  Pages(world, *best, reference, "v4_planar", {{0, 0, 576, 576}, {576, kPageRows * 576, 8, 8}});
  Pages(world, *best, reference, "v4_interleaved", {{0, 0, kRowBytes, kRowBytes}});
  Windows(world, *best);
  return 0;
}
