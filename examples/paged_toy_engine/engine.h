// SPDX-License-Identifier: Apache-2.0
// A toy inference engine with the memory of a real one: compressed entries in planar pages behind page tables, and a
// sliding window in a ring. Its "model" is integer mixing instead of matrix products, so that a wrong byte anywhere
// changes all that follows; where data goes, and what it depends on, is as in compressed attention.
//
//   window row of layer 0 at p   the token at p, and p
//   window row of layer l at p   rows p-7 .. p of layer l-1's window, and all of layer l's entries before p's group
//   entry i of layer l           window rows 4i .. 4i+3 of layer l
//
// Thread rule: one thread.
//
// Invariants:
//   I1  Nothing but tokens, window and entries decides what run() computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace toy {

constexpr std::uint32_t kLayers = 3;
constexpr std::uint32_t kWindow = 8;      // tokens, the query itself included
constexpr std::uint32_t kRatio = 4;       // tokens per entry
constexpr std::uint32_t kCodeBytes = 32;  // of an entry; also a window row's size
constexpr std::uint32_t kScaleBytes = 4;  // of an entry
constexpr std::uint32_t kEntryBytes = kCodeBytes + kScaleBytes;
constexpr std::uint32_t kRowsPerPage = 16;  // entries
// Planar: first the codes of all 16 entries, then their scales; what is left of 640 bytes is for the alignment.
constexpr std::uint32_t kPageBytes = 640;

class PagedEngine {
 public:
  // `pages` of memory for entries, given out from the end when `backwards`, so that two engines have no address in
  // common.
  PagedEngine(std::uint32_t pages, bool backwards);

  // Gives every layer pages for the entries of `tokens` tokens; false when there are not enough.
  bool allocate_pages(std::uint64_t tokens);
  // Runs tokens[from, to): window rows, and entries from token `write_floor` on; what lies below is in place already.
  // Returns the "logits" after token to-1.
  std::uint64_t run(const std::vector<std::int32_t>& tokens, std::uint64_t from, std::uint64_t to,
                    std::uint64_t write_floor = 0);

  // What the cache has to know: where rows are.
  std::vector<unsigned char>& page_memory() { return pages_; }
  const std::vector<std::int32_t>& page_table(std::uint32_t layer) const { return layers_[layer].table; }
  std::vector<unsigned char>& window(std::uint32_t layer) { return layers_[layer].window; }

 private:
  struct Layer {
    std::vector<std::int32_t> table;    // page of entries 16n .. 16n+15
    std::vector<unsigned char> window;  // row of position p in slot p mod 8
  };

  unsigned char* codes(const Layer& layer, std::uint64_t entry);
  unsigned char* scale(const Layer& layer, std::uint64_t entry);
  void compute_row(std::uint32_t layer, std::int32_t token, std::uint64_t position);
  void compute_entry(std::uint32_t layer, std::uint64_t entry);

  std::vector<unsigned char> pages_;
  std::vector<std::int32_t> free_pages_;
  std::vector<Layer> layers_;
};

}  // namespace toy
