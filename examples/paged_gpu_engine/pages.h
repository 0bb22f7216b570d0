// SPDX-License-Identifier: Apache-2.0
// An engine's memory on a GPU: for each rows stream of the model a pool of planar pages (all codes, then all scales) of
// 64 rows, and a page table, as vLLM and SGLang keep compressed KV. The rows themselves are pretended: a function of
// stream, row and byte.
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvstrata/kvstrata.hpp>
#include <memory>
#include <vector>

namespace gpu {

// Ends the program with a line where CUDA does not do what it is asked to.
void must_work(int cuda_error, const char* what);

struct DeviceFree {
  void operator()(unsigned char* memory) const;
};

class PagedStream {
 public:
  // Pages in an order of their own for each `seed`.
  PagedStream(std::uint32_t stream, const kvstrata::stream_info& info, std::uint64_t tokens, std::uint64_t seed);

  std::uint32_t layer() const { return layer_; }
  std::uint64_t bytes() const { return rows_ * row_bytes_; }

  // For the library: where the rows lie.
  kvstrata::buffer describe();
  // The rows, as if kernels had computed them.
  void compute();
  // Copies the pages back behind what is on `stream`, waits, and compares every row.
  bool is_what_was_computed(void* stream) const;

 private:
  static constexpr std::uint32_t kRowsPerPage = 64;

  std::uint64_t pool_bytes() const { return table_.size() * page_bytes_; }
  std::vector<unsigned char> expected() const;

  std::uint32_t stream_, layer_;
  std::uint32_t row_bytes_, code_bytes_, scale_bytes_;
  std::uint64_t rows_, page_bytes_;
  std::vector<std::int32_t> table_;
  std::unique_ptr<unsigned char, DeviceFree> pool_;  // on the device
};

// Of all rows streams of the model, in order of their layers.
std::vector<PagedStream> make_pages(const kvstrata::layout& model, std::uint64_t tokens, std::uint64_t seed);

}  // namespace gpu
