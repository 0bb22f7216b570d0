// SPDX-License-Identifier: Apache-2.0
// The index at size: the longest match of a prompt of 1,048,576 tokens among ten million blocks, keys and walk
// together, against what any content-addressed index must pay (a chain of XXH3-128 over the same blocks, and one bulk
// pass over the same ids); lookups of two threads beside a writer; and the memory of all.
//
//   KVSTRATA_INDEX_BLOCKS   other blocks in the index, 10,000,000 unless said: about 1.3 GB
#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/micro/plain_chain.h"
#include "benchmarks/ratio.h"
#include "lib/base/hash.h"
#include "lib/storage/segment/record_table.h"
#include "lib/trie/trie.h"

namespace {

using kvstrata::benchmarks::PlainChain;
using kvstrata::core::base::BlockDigest;
using kvstrata::core::base::ChainBlocks;
using kvstrata::core::base::RootDigest;
using kvstrata::core::storage::Record;
using kvstrata::core::storage::RecordTable;
using kvstrata::core::trie::KeySequence;
using kvstrata::core::trie::NodeRef;
using kvstrata::core::trie::Trie;

constexpr uint64_t kPromptTokens = uint64_t{1} << 20;
constexpr uint64_t kShortTokens = 8192;  // of a lookup beside a writer
constexpr uint64_t kChainBlocks = 64;    // of each other sequence

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "prefix_match: %s\n", what);
  std::exit(1);
}

uint64_t OtherBlocks() {
  const char* text = std::getenv("KVSTRATA_INDEX_BLOCKS");
  return text == nullptr ? 10'000'000 : std::strtoull(text, nullptr, 10);
}

// Well spread without the cost of hashing: odd, so a bijection.
BlockDigest FakeKey(uint64_t i) {
  const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15;
  return {{mixed ^ (mixed >> 29), mixed}, i};
}

struct World {
  std::vector<int32_t> prompt;
  BlockDigest root = RootDigest({});
  Trie trie{root};
  uint64_t sequence = 0;

  World() : prompt(kPromptTokens) {
    for (uint64_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * 2654435761u) % 129280);
    for (const uint64_t block_tokens : {64, 128}) {
      KeySequence keys = Keys(block_tokens);
      NodeRef parent = trie.root();
      for (uint64_t block = 0; block < kPromptTokens / block_tokens; ++block) parent = Add(parent, keys.At(block));
      trie.Touch(parent, Trie::kMaxTick);  // the writer evicts others
    }
    NodeRef parent = trie.root();
    for (uint64_t block = 0; block < OtherBlocks(); ++block) {
      parent = Add(block % kChainBlocks == 0 ? trie.root() : parent, FakeKey(block));
    }
  }

  NodeRef Add(NodeRef parent, const BlockDigest& key) {
    auto added = trie.Insert(parent, key, sequence, 1, sequence);
    if (!added.ok()) Fail("an insert failed");
    ++sequence;
    return added->node;
  }

  KeySequence Keys(uint64_t block_tokens) const {
    return KeySequence(
        root, [this, block_tokens](uint64_t index, const BlockDigest& parent, std::span<BlockDigest> out) {
          ChainBlocks(parent, std::span(prompt).subspan(index * block_tokens, out.size() * block_tokens), out);
        });
  }

  void Match(uint64_t block_tokens, uint64_t tokens) const {
    KeySequence keys = Keys(block_tokens);
    auto found = trie.TryMatch(keys, tokens / block_tokens);
    // The writer was put to sleep within a change: the engine waits for its lock then.
    for (; !found.has_value(); found = trie.TryMatch(keys, tokens / block_tokens)) std::this_thread::yield();
    if (found->blocks != tokens / block_tokens) Fail("the match is not the whole prompt");
  }

  // The keys alone, as this library makes them: with the second, independent check hash beside each digest.
  void KeyChain(uint64_t block_tokens) const {
    KeySequence keys = Keys(block_tokens);
    if (keys.At(kPromptTokens / block_tokens - 1) == root) Fail("the chain ends where it began");
  }

  // The fastest that xxHash has for this processor.
  void HashChain(PlainChain chain, uint64_t block_tokens) const {
    const XXH128_hash_t hash = chain(prompt, block_tokens);
    if (hash.low64 == 0 && hash.high64 == 0) Fail("the chain's digest is zero");
  }

  void BulkHash() const {
    const XXH128_hash_t hash = XXH3_128bits(prompt.data(), prompt.size() * sizeof(int32_t));
    if (hash.low64 == 0 && hash.high64 == 0) Fail("the digest is zero");
  }
};

World& TheWorld() {
  static World world;
  return world;
}

void PrefixMatch(benchmark::State& state) {
  for (auto _ : state) TheWorld().Match(static_cast<uint64_t>(state.range(0)), kPromptTokens);
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kPromptTokens));
}
BENCHMARK(PrefixMatch)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);

void PrintMatch(uint64_t block_tokens) {
  const World& world = TheWorld();
  const std::string name = "longest_match_1m_" + std::to_string(block_tokens);
  const auto match = [&] { world.Match(block_tokens, kPromptTokens); };
  using kvstrata::benchmarks::PrintRatio;
  const PlainChain chain = kvstrata::benchmarks::FastestPlainChain(world.prompt, block_tokens);
  PrintRatio((name + "_vs_hash_chain").c_str(), "<=1.3", match, [&] { world.HashChain(chain, block_tokens); });
  PrintRatio((name + "_vs_own_keys").c_str(), "<=1.3", match, [&] { world.KeyChain(block_tokens); });
  PrintRatio((name + "_vs_bulk_xxh3").c_str(), "<=8", match, [&] { world.BulkHash(); });
}

// ---- Lookups beside a writer ---------------------------------------------------------------------------------------

// More than drives take: of blocks as V4-Flash has them (64 tokens, 230 KB) 23 GB/s.
constexpr uint64_t kBlocksPerSecond = 100'000;

// Inserts and evicts `rate` blocks a second until told to stop.
class WriterThread {
 public:
  explicit WriterThread(uint64_t rate) : thread_([this, rate] { Run(rate); }) {}
  ~WriterThread() {
    stop_ = true;
    thread_.join();
  }
  // Of processor time, so far.
  double seconds() const { return seconds_; }

 private:
  void Run(uint64_t rate) {
    World& world = TheWorld();
    constexpr uint64_t kStep = 100;  // blocks between two looks at the clock
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t steps = 0; !stop_; ++steps) {
      for (uint64_t i = 0; i < kStep; ++i) {
        const auto coldest = world.trie.ColdestLeaf();
        if (!coldest.has_value() || !world.trie.Remove(*coldest).ok()) Fail("nothing to evict");
        world.Add(world.trie.root(), FakeKey(uint64_t{1} << 40 | world.sequence));
      }
      timespec used{};
      if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) != 0) Fail("no clock of the thread");
      seconds_ = static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
      std::this_thread::sleep_until(begin + std::chrono::microseconds(1'000'000 * kStep * steps / rate));
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<double> seconds_{0};
  std::thread thread_;
};

double LookupsPerSecond(int threads) {
  constexpr auto kTime = std::chrono::milliseconds(150);
  std::atomic<uint64_t> lookups{0};
  std::vector<std::thread> readers;
  const double seconds = kvstrata::benchmarks::SecondsOf([&] {
    const auto end = std::chrono::steady_clock::now() + kTime;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] {
        uint64_t count = 0;
        for (; std::chrono::steady_clock::now() < end; ++count) TheWorld().Match(64, kShortTokens);
        lookups += count;
      });
    }
    for (std::thread& reader : readers) reader.join();
  });
  return static_cast<double>(lookups) / seconds;
}

// Where there are two processors, what the writer takes of them is missing to the second reader: beside each ratio
// there is what two readers had left, were they never in each other's way.
void PrintThreads() {
  std::vector<double> ratios;
  std::vector<double> ceilings;
  const double processors = std::thread::hardware_concurrency();
  const WriterThread writer(kBlocksPerSecond);
  for (int pair = 0; pair < kvstrata::benchmarks::kPairs; ++pair) {
    const double one = LookupsPerSecond(1);
    const double before = writer.seconds();
    const double reading = kvstrata::benchmarks::SecondsOf([&] { ratios.push_back(LookupsPerSecond(2) / one); });
    ceilings.push_back(std::min(2.0, processors - (writer.seconds() - before) / reading));
  }
  using kvstrata::benchmarks::PrintRatios;
  PrintRatios("lookups_2_threads_beside_writer", ">=1.7", std::move(ratios));
  PrintRatios("lookups_2_threads_beside_writer_ceiling", "none", std::move(ceilings));
}

// ---- Memory --------------------------------------------------------------------------------------------------------

// The trie and the segment store's table, worst at any size from a million blocks on (or all that there are), for
// records of `run` blocks each.
void PrintMemory(uint64_t run) {
  Trie trie(RootDigest({}));
  RecordTable table;
  NodeRef parent = trie.root();
  double worst = 0;
  for (uint64_t i = 0; i < OtherBlocks(); ++i) {
    const uint32_t index = static_cast<uint32_t>(i % run);
    const auto added = trie.Insert(i % kChainBlocks == 0 ? trie.root() : parent, FakeKey(i), i / run,
                                   index == 0 ? 1 : 0, i, 0, {}, {index, static_cast<uint32_t>(run)});
    if (!added.ok()) Fail("an insert failed");
    parent = added->node;
    if (index == 0) {
      kvstrata::core::storage::Key key;
      std::memcpy(key.bytes.data(), &i, sizeof(i));
      Record record;
      record.log = 1;
      if (!table.Add(key, record, {}, {}).has_value()) Fail("no memory");
    }
    if (i + 1 < std::min<uint64_t>(OtherBlocks(), 1'000'000)) continue;
    worst = std::max(worst, static_cast<double>(trie.MemoryBytes() + table.MemoryBytes()) / static_cast<double>(i + 1));
  }
  std::printf("ratio index_bytes_per_block_runs_of_%llu %.2f goal <=96 over blocks %llu\n",
              static_cast<unsigned long long>(run), worst, static_cast<unsigned long long>(OtherBlocks()));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  // In memory that no other index has left behind, as an engine's is.
  TheWorld();
  benchmark::RunSpecifiedBenchmarks();
  PrintMatch(64);
  PrintMatch(128);
  PrintThreads();
  for (const uint64_t run : {1, 2, 4, 8, 64}) PrintMemory(run);
  return 0;
}
