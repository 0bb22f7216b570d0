// SPDX-License-Identifier: Apache-2.0
// What it costs to pin a hit in memory, per block, against a bare probe of a hash table per block: the least that any
// index must pay to say where a block is. A pin also compares each block's token ids and keeps its record.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/ratio.h"
#include "kvstrata/kvstrata.hpp"

namespace {

constexpr std::uint64_t kBlockTokens = 128;
constexpr std::uint64_t kBlocks = 512;
constexpr std::uint64_t kTokens = kBlocks * kBlockTokens;
constexpr std::uint32_t kLayers = 4;
constexpr std::uint32_t kRowBytes = 576;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "pins: %s\n", what);
  std::exit(1);
}

template <typename T>
T Must(kvstrata::result<T> result) {
  if (!result) Fail(result.error().c_str());
  return std::move(result).value();
}

std::uint64_t Mixed(std::uint64_t value) {  // splitmix64
  value = (value + 0x9e3779b97f4a7c15u) ^ (value >> 30);
  value = (value ^ (value >> 27)) * 0xbf58476d1ce4e5b9u;
  return value ^ (value >> 31);
}

// A table of a million 16-byte keys, half full, probed linearly.
class Table {
 public:
  Table() : slots_(std::size_t{1} << 21) {
    for (std::uint64_t i = 1; i <= 1'000'000; ++i) {
      std::size_t at = Place(i);
      while (slots_[at].number != 0) at = (at + 1) % slots_.size();
      slots_[at] = {Mixed(i), ~Mixed(i), i};
    }
  }
  std::uint64_t Find(std::uint64_t number) const {
    const std::uint64_t low = Mixed(number);
    for (std::size_t at = Place(number); slots_[at].number != 0; at = (at + 1) % slots_.size()) {
      if (slots_[at].low == low && slots_[at].high == ~low) return slots_[at].number;
    }
    return 0;
  }

 private:
  struct Slot {
    std::uint64_t low = 0, high = 0, number = 0;
  };
  std::size_t Place(std::uint64_t number) const { return Mixed(number) % slots_.size(); }
  std::vector<Slot> slots_;
};

class Store {
 public:
  Store() {
    kvstrata::cache_options options;
    options.capacity_bytes = std::uint64_t{1} << 30;
    cache_ = Must(kvstrata::cache::open(options));
    const auto layout = Must(kvstrata::layout::mla(kLayers, kRowBytes, kBlockTokens));
    kvstrata::identity who;
    for (const char* name : {"model.weights", "model.quantization", "rope", "packing", "adapter",
                             "engine.state_version", "kernel.numerics", "tenant"}) {
      who.set(name, "pins");
    }
    space_ = Must(cache_.open_namespace(layout, who));
    std::vector<std::int32_t> tokens(kTokens + 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(Mixed(i) % 50'000);
    std::vector<unsigned char> rows(kTokens * kRowBytes);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<unsigned char>(Mixed(i / 8) >> (8 * (i % 8)));
    auto writer = Must(space_.open_writer());
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      if (!writer.set_source(kvstrata::buffer::linear(layer, {rows.data(), rows.size()}))) Fail("no source");
    }
    for (std::uint64_t at = 0; at < kTokens; at += 8192) {
      if (!writer.advance({tokens.data() + at, 8192}, at + 8192)) Fail("no advance");
      if (!writer.commit()) Fail("no commit");
    }
    match_ = Must(space_.lookup({tokens.data(), tokens.size()}));
  }

  void Pin() const {
    const auto pinned = Must(match_.pin());
    if (Must(pinned.info()).end_token != kTokens) Fail("not all blocks are pinned");
  }

 private:
  kvstrata::cache cache_;
  kvstrata::name_space space_;
  kvstrata::match match_;
};

}  // namespace

int main() {
  const Store store;
  const Table table;
  std::uint64_t round = 0;
  const auto probe = [&] {
    ++round;
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      const std::uint64_t number = Mixed(round * kBlocks + block) % 1'000'000 + 1;
      if (table.Find(number) != number) Fail("a probe found nothing");
    }
  };
  kvstrata::benchmarks::PrintRatio(
      "ram_pin_vs_probe", "<=10", [&] { store.Pin(); }, probe);
  return 0;
}
