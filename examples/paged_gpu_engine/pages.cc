// SPDX-License-Identifier: Apache-2.0
#include "examples/paged_gpu_engine/pages.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

namespace gpu {
namespace {

// Of a row of DeepSeek-V4's main entries: 576 bytes of codes and RoPE, then 8 of scales.
constexpr std::uint32_t kScaleBytes = 8;
constexpr std::uint32_t kMainRowBytes = 584;

unsigned char byte_of(std::uint32_t stream, std::uint64_t row, std::uint64_t byte) {
  const std::uint64_t mixed = (row * 1099511628211ull + byte) * 0x9E3779B97F4A7C15ull + stream;
  return static_cast<unsigned char>(mixed >> 56);
}

}  // namespace

void must_work(int cuda_error, const char* what) {
  if (cuda_error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(cuda_error)));
  std::exit(1);
}

PagedStream::PagedStream(std::uint32_t stream, const kvstrata::stream_info& info, std::uint64_t tokens,
                         std::uint64_t seed)
    : stream_(stream),
      layer_(info.layer),
      row_bytes_(info.row_bytes),
      code_bytes_(info.row_bytes == kMainRowBytes ? info.row_bytes - kScaleBytes : info.row_bytes),
      scale_bytes_(info.row_bytes - code_bytes_),
      rows_(tokens / info.ratio),
      page_bytes_(std::uint64_t{kRowsPerPage} * info.row_bytes),
      table_((rows_ + kRowsPerPage - 1) / kRowsPerPage) {
  std::iota(table_.begin(), table_.end(), 0);
  std::shuffle(table_.begin(), table_.end(), std::mt19937_64(seed + stream));
  void* memory = nullptr;
  must_work(cudaMalloc(&memory, std::max<std::uint64_t>(pool_bytes(), 1)), "cudaMalloc");
  pool_.reset(static_cast<unsigned char*>(memory));
  must_work(cudaMemset(memory, 0, pool_bytes()), "cudaMemset");
}

void DeviceFree::operator()(unsigned char* memory) const { cudaFree(memory); }

kvstrata::buffer PagedStream::describe() {
  kvstrata::buffer buffer = kvstrata::buffer::pages(stream_, kvstrata::mutable_byte_view(pool_.get(), pool_bytes()),
                                                    kRowsPerPage, page_bytes_, table_.data(), table_.size());
  buffer.column(code_bytes_, 0, code_bytes_);
  if (scale_bytes_ != 0) buffer.column(scale_bytes_, std::uint64_t{kRowsPerPage} * code_bytes_, scale_bytes_);
  buffer.on_device(0);
  return buffer;
}

// The whole pool: rows in their places, zeros where no row is.
std::vector<unsigned char> PagedStream::expected() const {
  std::vector<unsigned char> pool(pool_bytes());
  for (std::uint64_t row = 0; row < rows_; ++row) {
    const std::uint64_t page = static_cast<std::uint64_t>(table_[row / kRowsPerPage]) * page_bytes_;
    const std::uint64_t slot = row % kRowsPerPage;
    for (std::uint32_t i = 0; i < row_bytes_; ++i) {
      const std::uint64_t at = i < code_bytes_ ? slot * code_bytes_ + i
                                               : kRowsPerPage * code_bytes_ + slot * scale_bytes_ + (i - code_bytes_);
      pool[page + at] = byte_of(stream_, row, i);
    }
  }
  return pool;
}

void PagedStream::compute() {
  must_work(cudaMemcpy(pool_.get(), expected().data(), pool_bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
}

bool PagedStream::is_what_was_computed(void* stream) const {
  std::vector<unsigned char> there(pool_bytes());
  const auto on = static_cast<cudaStream_t>(stream);
  must_work(cudaMemcpyAsync(there.data(), pool_.get(), there.size(), cudaMemcpyDeviceToHost, on), "cudaMemcpyAsync");
  must_work(cudaStreamSynchronize(on), "cudaStreamSynchronize");
  return there == expected();
}

std::vector<PagedStream> make_pages(const kvstrata::layout& model, std::uint64_t tokens, std::uint64_t seed) {
  std::vector<PagedStream> streams;
  const std::uint32_t count = model.info().value().stream_count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const kvstrata::stream_info info = model.stream(i).value();
    if (info.kind == KVSTRATA_STREAM_ROWS) streams.emplace_back(i, info, tokens, seed);
  }
  std::sort(streams.begin(), streams.end(),
            [](const PagedStream& a, const PagedStream& b) { return a.layer() < b.layer(); });
  return streams;
}

}  // namespace gpu
