// SPDX-License-Identifier: Apache-2.0
// A cache in a real file system that is smaller than its budget, through the public API (E13, I12, R14): the newest
// prompts are kept at the cost of the coldest, nothing that is found is wrong, and all goes on when others take the
// last byte. Mounting one needs the rights to; where they are not given, this says so and tests nothing.
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kvstrata/kvstrata.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/support/temp_dir.h"

namespace {

using kvstrata::buffer;
using kvstrata::test::Mix;
using kvstrata::test::Rng;
using kvstrata::test::TempDir;

// A file system in memory of so many bytes, gone with this.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes) {
    path_ = folder_ / "disk";
    mkdir(path_.c_str(), 0700);
    const std::string options = "mode=0700,size=" + std::to_string(bytes);
    mounted_ = mount("none", path_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }
  uint64_t free_bytes() const { return std::filesystem::space(path_).available; }
  // Somebody else's file takes all but so many bytes.
  void FillUpTo(uint64_t left) {
    std::ofstream out(path_ + "/others", std::ios::binary | std::ios::app);
    const std::string page(4096, 'x');
    while (out.good() && free_bytes() >= left + page.size()) out << page << std::flush;
  }

 private:
  TempDir folder_;
  std::string path_;
  bool mounted_ = false;
};

constexpr uint64_t kBlockTokens = 32;
constexpr uint64_t kBlocks = 4;
constexpr uint64_t kTokens = kBlockTokens * kBlocks;
constexpr uint32_t kRowBytes = 2048;  // 64 KiB a block

struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<unsigned char> rows;

  explicit Prompt(uint64_t seed) : rows(kTokens * kRowBytes) {
    Rng rng(seed);
    for (uint64_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<int32_t>(rng.Below(1u << 20)));
    for (size_t at = 0; at < rows.size(); at += 8) {
      const uint64_t word = Mix(seed, at);
      for (size_t i = 0; i < 8; ++i) rows[at + i] = static_cast<unsigned char>(word >> (8 * i));
    }
  }
};

class World {
 public:
  explicit World(const std::string& path) {
    kvstrata::cache_options options;
    options.path = path;
    options.capacity_bytes = 64u << 20;
    auto cache = kvstrata::cache::open(options);
    INFO((cache.ok() ? "" : cache.error().c_str()));
    REQUIRE(cache.ok());
    cache_ = std::move(*cache);
    kvstrata::layout_builder builder;
    auto layout = builder.block_tokens(kBlockTokens).rows(kvstrata::role::other, 0, 1, kRowBytes).build();
    REQUIRE(layout.ok());
    auto space = cache_.open_namespace(*layout, kvstrata::identity().set("model.weights", "w").set("tenant", "t"));
    REQUIRE(space.ok());
    space_ = std::move(*space);
  }

  // OK, or what the commit said; that nothing was stored is no error.
  kvstrata::errc Store(Prompt prompt, bool durable) {
    auto writer = space_.open_writer();
    REQUIRE(writer.ok());
    REQUIRE(writer->set_source(buffer::linear(0, prompt.rows)).ok());
    REQUIRE(writer->advance(prompt.tokens, kTokens).ok());
    kvstrata::commit_options options;
    options.durable = durable;
    return writer->commit(options).code();
  }

  // How many tokens came back, all of them right.
  uint64_t Restore(const Prompt& prompt) {
    std::vector<int32_t> tokens = prompt.tokens;
    tokens.push_back(-1);  // no match is longer than all tokens but one
    auto match = space_.lookup(tokens);
    REQUIRE(match.ok());
    auto plan = match->plan();
    REQUIRE(plan.ok());
    std::vector<unsigned char> rows(prompt.rows.size());
    REQUIRE(plan->start(std::vector{buffer::linear(0, rows)}).ok());
    const auto result = plan->wait();
    REQUIRE(result.ok());
    const auto usable = static_cast<std::ptrdiff_t>(result->usable_tokens * kRowBytes);
    CHECK(std::equal(rows.begin(), rows.begin() + usable, prompt.rows.begin()));
    return result->usable_tokens;
  }

  kvstrata::cache_stats stats() const { return cache_.stats().value(); }
  kvstrata::cache& cache() { return cache_; }

 private:
  kvstrata::cache cache_;
  kvstrata::name_space space_;
};

}  // namespace

TEST_CASE("a file system smaller than the budget: the newest prompts are kept, what is found is right") {
  SmallDisk disk(16u << 20);
  if (!disk.mounted()) {
    std::printf("skipped: no right to mount a file system\n");
    return;
  }
  const std::string path = disk.path() + "/store";
  constexpr uint64_t kPrompts = 120;  // of 256 KiB: 30 MiB
  {
    World world(path);
    for (uint64_t i = 0; i < kPrompts; ++i) {
      CAPTURE(i);
      CHECK(world.Store(Prompt(i), i % 10 == 0) == kvstrata::errc::ok);
      CHECK(world.Restore(Prompt(i)) == kTokens);
    }
    const kvstrata::cache_stats stats = world.stats();
    CHECK(stats.blocks_evicted > 0);
    CHECK(stats.blocks_dropped == 0);
    CHECK(stats.held_bytes <= 16u << 20);
    CHECK(stats.reads_corrupt == 0);
    CHECK(world.cache().close().ok());
  }
  World world(path);
  CHECK(world.stats().skipped_corrupt == 0);
  CHECK(world.stats().skipped_orphans == 0);
  uint64_t found = 0;
  for (uint64_t i = 0; i < kPrompts; ++i) found += world.Restore(Prompt(i));
  CHECK(found == world.stats().held_blocks * kBlockTokens);
  // Two thirds of the file system at least, in the end.
  CHECK(found * kRowBytes > (16u << 20) / 3 * 2);
  CHECK(world.cache().verify().value().corrupt == 0);
}

TEST_CASE("others take the last byte of a file system: reads go on, and stores fail or make room, never wrongly") {
  SmallDisk disk(16u << 20);
  if (!disk.mounted()) {
    std::printf("skipped: no right to mount a file system\n");
    return;
  }
  const std::string path = disk.path() + "/store";
  {
    World world(path);
    for (uint64_t i = 0; i < 10; ++i) REQUIRE(world.Store(Prompt(i), true) == kvstrata::errc::ok);
    disk.FillUpTo(0);
    for (uint64_t i = 0; i < 10; ++i) CHECK(world.Restore(Prompt(i)) == kTokens);
    for (uint64_t i = 10; i < 40; ++i) {
      // Once a flush has failed, none is said to have succeeded before the next opening.
      const kvstrata::errc code = world.Store(Prompt(i), i % 2 == 0);
      const bool told = code == kvstrata::errc::no_space || code == kvstrata::errc::io;
      CHECK((code == kvstrata::errc::ok || told));
    }
    for (uint64_t i = 0; i < 40; ++i) world.Restore(Prompt(i));
    CHECK(world.stats().reads_corrupt == 0);
    static_cast<void>(world.cache().close());
  }
  // With room again everything works again, and what is there is right.
  std::filesystem::remove(disk.path() + "/others");
  World world(path);
  CHECK(world.stats().skipped_corrupt == 0);
  for (uint64_t i = 0; i < 40; ++i) world.Restore(Prompt(i));
  for (uint64_t i = 40; i < 44; ++i) {
    CHECK(world.Store(Prompt(i), true) == kvstrata::errc::ok);
    CHECK(world.Restore(Prompt(i)) == kTokens);
  }
}
