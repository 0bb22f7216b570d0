// SPDX-License-Identifier: Apache-2.0
#include "examples/paged_toy_engine/engine.h"

#include <algorithm>
#include <cstring>

namespace toy {
namespace {

// FNV-1a with 64 bits: every byte reaches every later one.
constexpr std::uint64_t kSeed = 14695981039346656037ull;

std::uint64_t mix(std::uint64_t state, const unsigned char* bytes, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) state = (state ^ bytes[i]) * 1099511628211ull;
  return state;
}

void spread(std::uint64_t state, unsigned char* out, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    state = (state ^ i) * 1099511628211ull;
    out[i] = static_cast<unsigned char>(state >> 56);
  }
}

}  // namespace

PagedEngine::PagedEngine(std::uint32_t pages, bool backwards)
    : pages_(std::size_t{pages} * kPageBytes), layers_(kLayers) {
  for (std::uint32_t i = 0; i < pages; ++i) {
    free_pages_.push_back(static_cast<std::int32_t>(backwards ? i : pages - 1 - i));
  }
  for (Layer& layer : layers_) layer.window.resize(kWindow * kCodeBytes);
}

bool PagedEngine::allocate_pages(std::uint64_t tokens) {
  const std::uint64_t wanted = (tokens / kRatio + kRowsPerPage - 1) / kRowsPerPage;
  for (Layer& layer : layers_) {
    while (layer.table.size() < wanted) {
      if (free_pages_.empty()) return false;
      layer.table.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
  }
  return true;
}

unsigned char* PagedEngine::codes(const Layer& layer, std::uint64_t entry) {
  unsigned char* page = &pages_[static_cast<std::size_t>(layer.table[entry / kRowsPerPage]) * kPageBytes];
  return page + entry % kRowsPerPage * kCodeBytes;
}

unsigned char* PagedEngine::scale(const Layer& layer, std::uint64_t entry) {
  unsigned char* page = &pages_[static_cast<std::size_t>(layer.table[entry / kRowsPerPage]) * kPageBytes];
  return page + kRowsPerPage * kCodeBytes + entry % kRowsPerPage * kScaleBytes;
}

void PagedEngine::compute_row(std::uint32_t index, std::int32_t token, std::uint64_t position) {
  Layer& layer = layers_[index];
  std::uint64_t state = kSeed ^ position;
  if (index == 0) {
    unsigned char id[sizeof token];
    std::memcpy(id, &token, sizeof token);
    state = mix(state, id, sizeof id);
  } else {
    const Layer& below = layers_[index - 1];
    const std::uint64_t first = position + 1 < kWindow ? 0 : position + 1 - kWindow;
    for (std::uint64_t p = first; p <= position; ++p) {
      state = mix(state, &below.window[p % kWindow * kCodeBytes], kCodeBytes);
    }
    for (std::uint64_t i = 0; i < position / kRatio; ++i) {
      state = mix(state, codes(layer, i), kCodeBytes);
      state = mix(state, scale(layer, i), kScaleBytes);
    }
  }
  spread(state, &layer.window[position % kWindow * kCodeBytes], kCodeBytes);
}

void PagedEngine::compute_entry(std::uint32_t index, std::uint64_t entry) {
  Layer& layer = layers_[index];
  std::uint64_t state = kSeed;
  for (std::uint64_t p = entry * kRatio; p < (entry + 1) * kRatio; ++p) {
    state = mix(state, &layer.window[p % kWindow * kCodeBytes], kCodeBytes);
  }
  spread(state, codes(layer, entry), kCodeBytes);
  spread(~state, scale(layer, entry), kScaleBytes);
}

std::uint64_t PagedEngine::run(const std::vector<std::int32_t>& tokens, std::uint64_t from, std::uint64_t to,
                               std::uint64_t write_floor) {
  for (std::uint64_t p = from; p < to; ++p) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      compute_row(layer, tokens[static_cast<std::size_t>(p)], p);
      if ((p + 1) % kRatio == 0 && p >= write_floor) compute_entry(layer, p / kRatio);
    }
  }
  std::uint64_t logits = kSeed;
  for (const Layer& layer : layers_) logits = mix(logits, layer.window.data(), layer.window.size());
  return logits;
}

}  // namespace toy
