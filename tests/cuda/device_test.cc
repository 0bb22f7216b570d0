// SPDX-License-Identifier: Apache-2.0
// libkvstrata_cuda's device on the model: every copy arrives, by few launches; nothing is used again before its event;
// failures and timeouts leave the stream usable.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/cuda/library/split.h"
#include "tests/support/catch.hpp"
#include "tests/support/cuda_model.h"
#include "tests/support/grid_model.h"

namespace kvstrata::test {
namespace {

constexpr uint64_t kArenaBytes = uint64_t{64} << 20;
constexpr uint64_t kWaitMs = 10'000;
constexpr kvstrata_status kFailed = KVSTRATA_CUDA_STATUS_BASE + CudaModel::kFailure;

kvstrata_copy CopyOf(uint64_t host_offset, uint64_t device_offset, uint64_t size, uint64_t host_stride,
                     uint64_t device_stride, uint64_t count) {
  return {sizeof(kvstrata_copy), 0, host_offset, device_offset, size, host_stride, device_stride, count};
}

// A device with pinned memory and memory of its own, and what is expected in both.
struct Rig {
  explicit Rig(uint64_t seed, uint64_t size = uint64_t{1} << 20) : device(kArenaBytes, seed), bytes(size), rng(seed) {
    host = static_cast<std::byte*>(table().allocate_pinned(table().ctx, 0, bytes, 4096));
    memory = device.Allocate(bytes);
    expected_host.resize(bytes);
    expected_memory.resize(bytes);
    for (uint64_t i = 0; i < bytes; ++i) {
      expected_host[i] = static_cast<std::byte>(rng.Next());
      expected_memory[i] = static_cast<std::byte>(rng.Next());
    }
    std::memcpy(host, expected_host.data(), bytes);
    device.Write(memory, expected_memory.data(), bytes);
  }
  ~Rig() {
    table().release_pinned(table().ctx, 0, host, bytes);
    device.Free(memory);
    device.Close();
    for (const std::string& violation : device.model().violations()) FAIL_CHECK(violation);
    for (const std::string& leftover : device.model().leftovers()) FAIL_CHECK("left over: " << leftover);
    for (const std::string& fault : TakeGridFaults()) FAIL_CHECK(fault);
  }

  const kvstrata_device& table() const { return *device.table(); }

  kvstrata_status Copy(int32_t direction, const std::vector<kvstrata_copy>& copies, void* stream = nullptr) {
    return table().copy(table().ctx, 0, stream, direction, host, memory, copies.data(), copies.size(),
                        sizeof(kvstrata_copy));
  }
  kvstrata_status Finish(void* stream = nullptr) {
    void* event = nullptr;
    if (const kvstrata_status status = table().record(table().ctx, 0, stream, &event); status != KVSTRATA_OK) {
      return status;
    }
    const kvstrata_status status = table().wait(table().ctx, 0, event, kWaitMs);
    table().release_event(table().ctx, 0, event);
    return status;
  }

  void Expect(int32_t direction, const std::vector<kvstrata_copy>& copies) {
    for (const kvstrata_copy& copy : copies) {
      for (uint64_t row = 0; row < copy.count; ++row) {
        std::byte* on_host = expected_host.data() + copy.host_offset + row * copy.host_stride;
        std::byte* on_device = expected_memory.data() + copy.device_offset + row * copy.device_stride;
        if (direction == KVSTRATA_TO_DEVICE) std::memcpy(on_device, on_host, copy.size);
        if (direction == KVSTRATA_FROM_DEVICE) std::memcpy(on_host, on_device, copy.size);
      }
    }
  }
  void Check() {
    std::vector<std::byte> there(bytes);
    device.Read(there.data(), memory, bytes);
    CHECK(there == expected_memory);
    CHECK(std::memcmp(host, expected_host.data(), bytes) == 0);
  }

  CudaModelDevice device;
  uint64_t bytes;
  Rng rng;
  std::byte* host = nullptr;
  std::byte* memory = nullptr;
  std::vector<std::byte> expected_host, expected_memory;
};

// Copies of odd sizes that do not overlap: both sides are dealt out from the front.
std::vector<kvstrata_copy> RandomCopies(Rng& rng, uint64_t bytes, uint64_t most) {
  std::vector<kvstrata_copy> copies;
  uint64_t host = 0, device = 0;
  for (uint64_t i = 0; i < most; ++i) {
    const uint64_t grain = uint64_t{1} << rng.Below(5);
    const uint64_t size = grain * rng.Between(1, 200), count = rng.Between(1, 40);
    const uint64_t host_stride = size + grain * rng.Below(8), device_stride = size + grain * rng.Below(8);
    host = (host + grain * rng.Below(5) + grain - 1) / grain * grain;
    device = (device + grain * rng.Below(5) + grain - 1) / grain * grain;
    if (host + count * host_stride > bytes || device + count * device_stride > bytes) break;
    copies.push_back(CopyOf(host, device, size, host_stride, device_stride, count));
    host += count * host_stride;
    device += count * device_stride;
  }
  return copies;
}

}  // namespace

TEST_CASE("many small copies are one launch, in both directions, whatever their sizes and alignments") {
  const uint64_t seed = TestSeed("cuda device copies", 50);
  for (uint64_t round = 0; round < 6; ++round) {
    Rig rig(Mix(seed, round));
    for (const int32_t direction : {KVSTRATA_TO_DEVICE, KVSTRATA_FROM_DEVICE}) {
      const std::vector<kvstrata_copy> copies = RandomCopies(rig.rng, rig.bytes, 30);
      const uint64_t before = rig.device.model().launches();
      REQUIRE(rig.Copy(direction, copies) == KVSTRATA_OK);
      REQUIRE(rig.Finish() == KVSTRATA_OK);
      rig.Expect(direction, copies);
      rig.Check();
      CHECK(rig.device.model().launches() == before + 1);
    }
    CHECK(rig.device.model().engine_copies() == 0);
  }
}

TEST_CASE("a planar page of V4 rows is one launch of 8-byte words and more") {
  Rig rig(1);
  // 64 rows of 584 bytes on the host; in the page 576 and 8 bytes apart.
  const std::vector<kvstrata_copy> copies = {CopyOf(0, 0, 576, 584, 576, 64), CopyOf(576, 576 * 64, 8, 584, 8, 64)};
  REQUIRE(rig.Copy(KVSTRATA_TO_DEVICE, copies) == KVSTRATA_OK);
  REQUIRE(rig.Finish() == KVSTRATA_OK);
  rig.Expect(KVSTRATA_TO_DEVICE, copies);
  rig.Check();
  CHECK(rig.device.model().launches() == 1);
}

TEST_CASE("long rows go by the copy engines, a bounded number of them, and the rest by a launch") {
  Rig rig(2, uint64_t{16} << 20);
  std::vector<kvstrata_copy> copies = {
      CopyOf(0, 0, 576, 576, 576, 1024),                          // back to back on both sides: one of 576 KiB
      CopyOf(1 << 20, 1 << 20, 70'000, 80'000, 90'000, 8),        // long rows with gaps
      CopyOf(2 << 20, 2 << 20, 16, 32, 16, 100),                  // short ones
      CopyOf(3 << 20, 3 << 20, (256 << 10) - 1, 0, 0, 1),         // not long enough
      CopyOf(4 << 20, 4 << 20, 0, 0, 0, 1), CopyOf(0, 0, 8, 8, 8, 0)};  // nothing
  for (const int32_t direction : {KVSTRATA_TO_DEVICE, KVSTRATA_FROM_DEVICE}) {
    const uint64_t engine_copies = rig.device.model().engine_copies(), launches = rig.device.model().launches();
    REQUIRE(rig.Copy(direction, copies) == KVSTRATA_OK);
    REQUIRE(rig.Finish() == KVSTRATA_OK);
    rig.Expect(direction, copies);
    rig.Check();
    CHECK(rig.device.model().engine_copies() == engine_copies + 2);
    CHECK(rig.device.model().launches() == launches + 1);
  }
  copies.clear();
  for (uint64_t i = 0; i < 20; ++i) copies.push_back(CopyOf(i * 300'000, i * 300'000, 300'000, 0, 0, 1));
  const uint64_t before = rig.device.model().engine_copies();
  REQUIRE(rig.Copy(KVSTRATA_TO_DEVICE, copies) == KVSTRATA_OK);
  REQUIRE(rig.Finish() == KVSTRATA_OK);
  rig.Expect(KVSTRATA_TO_DEVICE, copies);
  rig.Check();
  CHECK(rig.device.model().engine_copies() == before + kernels::cuda::Device::kMostEngineCopies);
}

TEST_CASE("rows further apart than a copy engine can step are left to a launch") {
  kernels::cuda::RowsCopy rows{nullptr, nullptr, INT32_MAX, 1 << 20, 1 << 20, 2};
  CHECK(kernels::cuda::ForCopyEngine(rows));
  rows.to_stride += 1;
  CHECK(!kernels::cuda::ForCopyEngine(rows));
  std::swap(rows.to_stride, rows.from_stride);
  CHECK(!kernels::cuda::ForCopyEngine(rows));
  rows.rows = 1;  // a stride that nobody takes
  CHECK(kernels::cuda::ForCopyEngine(rows));
}

TEST_CASE("more runs than the chunks hold wait for chunks that are done, and overtake nothing") {
  Rig rig(3, uint64_t{2} << 20);
  // Every row is a run of its own: 9,000 of them are more than the 8 chunks of 1024.
  std::vector<kvstrata_copy> copies;
  for (uint64_t i = 0; i < 9'000; ++i) copies.push_back(CopyOf(i * 96, (8'999 - i) * 80, 72, 0, 0, 1));
  REQUIRE(rig.Copy(KVSTRATA_TO_DEVICE, copies) == KVSTRATA_OK);
  REQUIRE(rig.Finish() == KVSTRATA_OK);
  rig.Expect(KVSTRATA_TO_DEVICE, copies);
  rig.Check();
  CHECK(rig.device.model().launches() == 9);
  // Where the device does not move they are waited for no longer than is bounded.
  rig.device.model().Hang(true);
  CHECK(rig.Copy(KVSTRATA_TO_DEVICE, copies) == KVSTRATA_E_TIMEOUT);
  CHECK(rig.device.model().launches() == 9 + 8);
  rig.device.model().Hang(false);
  REQUIRE(rig.Finish() == KVSTRATA_OK);
  rig.Check();
}

TEST_CASE("work that the engine has queued before a copy sees the page as it was") {
  Rig rig(4);
  int stream = 0;
  std::vector<std::byte> seen(4096);
  const std::vector<std::byte> before(rig.expected_memory.begin(), rig.expected_memory.begin() + 4096);
  rig.device.model().Enqueue(&stream, [&] { std::memcpy(seen.data(), rig.memory, seen.size()); });
  const std::vector<kvstrata_copy> copies = {CopyOf(0, 0, 64, 64, 64, 64)};
  REQUIRE(rig.Copy(KVSTRATA_TO_DEVICE, copies, &stream) == KVSTRATA_OK);
  CHECK(rig.device.model().pending() > 0);  // a copy does not wait
  REQUIRE(rig.Finish(&stream) == KVSTRATA_OK);
  CHECK(seen == before);
  rig.Expect(KVSTRATA_TO_DEVICE, copies);
  rig.Check();
}

TEST_CASE("a wait ends at its time, and the event can be waited for again") {
  Rig rig(5);
  rig.device.model().Hang(true);
  const std::vector<kvstrata_copy> copies = {CopyOf(0, 0, 64, 64, 128, 64)};
  REQUIRE(rig.Copy(KVSTRATA_TO_DEVICE, copies) == KVSTRATA_OK);
  void* event = nullptr;
  REQUIRE(rig.table().record(rig.table().ctx, 0, nullptr, &event) == KVSTRATA_OK);
  const uint64_t begin = rig.device.model().NowNs();
  CHECK(rig.table().wait(rig.table().ctx, 0, event, 50) == KVSTRATA_E_TIMEOUT);
  const uint64_t waited_ms = (rig.device.model().NowNs() - begin) / 1'000'000;
  CHECK(waited_ms >= 50);
  CHECK(waited_ms < 55);
  CHECK(rig.table().wait(rig.table().ctx, 0, event, 0) == KVSTRATA_E_TIMEOUT);
  rig.device.model().Hang(false);
  CHECK(rig.table().wait(rig.table().ctx, 0, event, UINT64_MAX) == KVSTRATA_OK);
  rig.table().release_event(rig.table().ctx, 0, event);
  rig.Expect(KVSTRATA_TO_DEVICE, copies);
  rig.Check();
}

TEST_CASE("fail-Nth: any call of the run-time library fails, and the stream goes on") {
  const std::vector<kvstrata_copy> copies = {CopyOf(0, 0, 576, 584, 576, 64),
                                             CopyOf(300'000, 300'000, 300'000, 0, 0, 1)};
  uint64_t failures = 0;
  for (uint64_t n = 1; n < 60; ++n) {
    Rig rig(100 + n);
    rig.device.model().FailNth(n);
    kvstrata_status status = rig.Copy(KVSTRATA_TO_DEVICE, copies);
    if (status == KVSTRATA_OK) status = rig.Finish();
    if (rig.device.model().failed()) {
      ++failures;
      CHECK((status == kFailed || status == KVSTRATA_CUDA_STATUS_BASE + kernels::cuda::kMemoryAllocation));
    } else {
      CHECK(status == KVSTRATA_OK);
    }
    rig.device.model().FailNth(0);
    // What had been queued is done or not; nothing else has been touched, and the same again succeeds.
    REQUIRE(rig.Finish() == KVSTRATA_OK);
    REQUIRE(rig.Copy(KVSTRATA_TO_DEVICE, copies) == KVSTRATA_OK);
    REQUIRE(rig.Finish() == KVSTRATA_OK);
    rig.Expect(KVSTRATA_TO_DEVICE, copies);
    rig.Check();
    rig.device.model().Drain();
  }
  CHECK(failures >= 6);  // event, pinned memory, launch, its event, engine copy, record, and queries
}

TEST_CASE("wrong arguments are statuses") {
  Rig rig(6);
  const kvstrata_device& table = rig.table();
  kvstrata_copy copy = CopyOf(0, 0, 8, 8, 8, 1);
  CHECK(table.copy(table.ctx, 0, nullptr, 3, rig.host, rig.memory, &copy, 1, sizeof copy) ==
        KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(table.copy(table.ctx, 0, nullptr, KVSTRATA_TO_DEVICE, rig.host, rig.memory, nullptr, 1, sizeof copy) ==
        KVSTRATA_E_INVALID_ARGUMENT);
  copy.struct_size = 8;
  CHECK(table.copy(table.ctx, 0, nullptr, KVSTRATA_TO_DEVICE, rig.host, rig.memory, &copy, 1, sizeof copy) ==
        KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(table.copy(table.ctx, 0, nullptr, KVSTRATA_TO_DEVICE, rig.host, rig.memory, nullptr, 0, 0) == KVSTRATA_OK);
  copy.struct_size = sizeof copy;
  auto* per_thread = reinterpret_cast<void*>(uintptr_t{2});  // cudaStreamPerThread
  void* event = nullptr;
  CHECK(table.copy(table.ctx, 0, per_thread, KVSTRATA_TO_DEVICE, rig.host, rig.memory, &copy, 1, sizeof copy) ==
        KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(table.record(table.ctx, 0, per_thread, &event) == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(table.copy(table.ctx, 7, nullptr, KVSTRATA_TO_DEVICE, rig.host, rig.memory, &copy, 1, sizeof copy) ==
        KVSTRATA_CUDA_STATUS_BASE + 101);
  CHECK(table.allocate_pinned(table.ctx, 0, 0, 64) == nullptr);
  CHECK(table.allocate_pinned(table.ctx, 0, 64, 3) == nullptr);
  rig.Check();
}

TEST_CASE("pinned memory is bounded, kept, and given out without overlaps") {
  CudaModel model(4096, 1);
  Rng rng(TestSeed("pinned pool", 51));
  {
    constexpr uint64_t kCapacity = uint64_t{40} << 20;
    kernels::cuda::PinnedPool pool(model, kCapacity);
    std::map<uintptr_t, uint64_t> pieces;
    CHECK(model.pinned_peak() == 0);
    for (uint64_t i = 0; i < 3000; ++i) {
      if (rng.Chance(55)) {
        const uint64_t bytes = rng.Between(1, rng.Chance(10) ? 20 << 20 : 1 << 20);
        const uint64_t alignment = uint64_t{1} << rng.Below(18);
        void* memory = pool.Allocate(0, bytes, alignment);
        if (memory == nullptr) continue;
        const auto begin = reinterpret_cast<uintptr_t>(memory);
        REQUIRE(begin % alignment == 0);
        const auto next = pieces.lower_bound(begin);
        REQUIRE((next == pieces.end() || begin + bytes <= next->first));
        REQUIRE((next == pieces.begin() || std::prev(next)->first + std::prev(next)->second <= begin));
        pieces[begin] = bytes;
      } else if (!pieces.empty()) {
        auto piece = pieces.begin();
        std::advance(piece, static_cast<int64_t>(rng.Below(pieces.size())));
        pool.Release(reinterpret_cast<void*>(piece->first));
        pieces.erase(piece);
      }
      REQUIRE(model.pinned_peak() <= kCapacity);
      REQUIRE(pool.held_bytes() <= kCapacity);
    }
    for (const auto& [begin, bytes] : pieces) pool.Release(reinterpret_cast<void*>(begin));
    // All joined again: a whole slab can be had, and no new one is made.
    const uint64_t held = pool.held_bytes();
    void* slab = pool.Allocate(0, uint64_t{16} << 20, 4096);
    CHECK(slab != nullptr);
    CHECK(pool.held_bytes() == held);
    CHECK(pool.Allocate(0, kCapacity + 1, 64) == nullptr);
    pool.Release(slab);
  }
  CHECK(model.leftovers().empty());
  CHECK(model.violations().empty());
}

TEST_CASE("options and the table follow the size-first rule") {
  kernels::cuda::DeviceOptions options;
  CHECK(kernels::cuda::ReadOptions(nullptr, &options).ok());
  CHECK(options.pinned_bytes == uint64_t{256} << 20);
  kvstrata_cuda_device_options given{sizeof given, 0, 4096};
  CHECK(kernels::cuda::ReadOptions(&given, &options).ok());
  CHECK(options.pinned_bytes == 4096);
  given.struct_size = 8;  // without pinned_bytes
  options = {};
  CHECK(kernels::cuda::ReadOptions(&given, &options).ok());
  CHECK(options.pinned_bytes == uint64_t{256} << 20);
  for (const uint32_t size : {0u, 3u, 12u, 5000u}) {
    given.struct_size = size;
    CHECK(kernels::cuda::ReadOptions(&given, &options).field == "options.struct_size");
  }
  given = {sizeof given, 1, 0};
  CHECK(kernels::cuda::ReadOptions(&given, &options).field == "options.flags");
  struct {
    kvstrata_cuda_device_options known;
    uint64_t more;
  } newer{{sizeof newer, 0, 0}, 0};
  CHECK(kernels::cuda::ReadOptions(&newer.known, &options).ok());
  newer.more = 1;
  CHECK(kernels::cuda::ReadOptions(&newer.known, &options).code == KVSTRATA_E_STRUCT_TOO_NEW);

  CudaModel model(4096, 1);
  kvstrata_device device{};
  CHECK(kernels::cuda::MakeDevice(model, {}, nullptr).field == "out_device");
  CHECK(kernels::cuda::MakeDevice(model, {}, &device).field == "out_device.struct_size");
  device.struct_size = sizeof device;
  REQUIRE(kernels::cuda::MakeDevice(model, {}, &device).ok());
  CHECK(device.abi_version == KVSTRATA_ABI_VERSION);
  device.destroy(device.ctx);
  CHECK(model.leftovers().empty());
}

// --- the model itself: what it is there to find --------------------------------------------------------------------

namespace {

// What the model says of a client that copies, does `fault` at once, and waits only then.
template <typename Fault>
std::string Planted(int32_t direction, const Fault& fault) {
  CudaModelDevice device(kArenaBytes, 9);
  const kvstrata_device& table = *device.table();
  constexpr uint64_t kBytes = 64 << 10;
  auto* host = static_cast<std::byte*>(table.allocate_pinned(table.ctx, 0, kBytes, 64));
  std::memset(host, 1, kBytes);
  std::byte* memory = device.Allocate(kBytes);
  device.Write(memory, host, kBytes);
  const kvstrata_copy copy = CopyOf(0, 0, 64, 128, 64, 64);
  REQUIRE(table.copy(table.ctx, 0, nullptr, direction, host, memory, &copy, 1, sizeof copy) == KVSTRATA_OK);
  fault(table, host, kBytes);
  device.model().Drain();
  device.Close();
  const std::vector<std::string> violations = device.model().violations();
  return violations.empty() ? "" : violations.front();
}

}  // namespace

TEST_CASE("the model finds staging memory that is used again before its copy has run") {
  CHECK(Planted(KVSTRATA_TO_DEVICE, [](auto&&...) {}) == "");
  CHECK(Planted(KVSTRATA_TO_DEVICE, [](const kvstrata_device&, std::byte* host, uint64_t) {
          host[128] = std::byte{2};
        }) == "host memory changed before what was queued had read it");
  CHECK(Planted(KVSTRATA_TO_DEVICE, [](const kvstrata_device& table, std::byte* host, uint64_t bytes) {
          table.release_pinned(table.ctx, 0, host, bytes);
        }) == "staging released before its copy was waited for");
}

TEST_CASE("the model finds that what comes from the device is read before it is there") {
  std::byte seen{1};
  CHECK(Planted(KVSTRATA_FROM_DEVICE,
                [&](const kvstrata_device&, std::byte* host, uint64_t) { seen = host[128]; }) == "");
  CHECK(seen == std::byte{0xdd});
}

TEST_CASE("the model finds runs that are written anew before their launch has read them") {
  CudaModel model(kArenaBytes, 10);
  void* pinned = nullptr;
  REQUIRE(model.AllocatePinned(0, 8192, &pinned) == kernels::cuda::kSuccess);
  auto* runs = static_cast<kernels::cuda::Run*>(pinned);
  auto* from = static_cast<uint8_t*>(pinned) + 4096;
  std::memset(from, 3, 64);
  auto* to = reinterpret_cast<uint8_t*>(model.Allocate(64));
  runs[0] = {from, to, 0, 0, 4, 1, 16, 0};
  REQUIRE(model.Move(0, nullptr, runs, 1) == kernels::cuda::kSuccess);
  runs[0].row_words = 2;
  model.Drain();
  CHECK(model.violations() == std::vector<std::string>{"host memory changed before what was queued had read it"});
  model.Free(reinterpret_cast<std::byte*>(to));
  model.ReleasePinned(0, pinned);
}

TEST_CASE("the model finds copies outside of what they may touch") {
  CudaModel model(kArenaBytes, 11);
  std::byte* memory = model.Allocate(64);
  std::byte elsewhere[64] = {};
  void* pinned = nullptr;
  REQUIRE(model.AllocatePinned(0, 64, &pinned) == kernels::cuda::kSuccess);
  REQUIRE(model.Copy(0, nullptr, kernels::cuda::CopyWay::kToDevice, {memory, elsewhere, 0, 0, 64, 1}) ==
          kernels::cuda::kSuccess);
  REQUIRE(model.Copy(0, nullptr, kernels::cuda::CopyWay::kToDevice, {memory + 16, pinned, 0, 0, 64, 1}) ==
          kernels::cuda::kSuccess);
  CHECK(model.violations() ==
        std::vector<std::string>{"a copy outside pinned memory", "a copy outside a device allocation"});
  model.Drain();
  model.Free(memory);
  model.ReleasePinned(0, pinned);
}

TEST_CASE("streams of the model run in an order that the seed chooses, each one in its own") {
  std::map<std::string, int> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CudaModel model(4096, seed);
    std::string order;
    int first = 0, second = 0;
    for (const char mark : {'a', 'b'}) model.Enqueue(&first, [&order, mark] { order += mark; });
    for (const char mark : {'x', 'y'}) model.Enqueue(&second, [&order, mark] { order += mark; });
    model.Drain();
    CHECK(order.find('a') < order.find('b'));
    CHECK(order.find('x') < order.find('y'));
    ++orders[order];
  }
  CHECK(orders.size() >= 4);
}

}  // namespace kvstrata::test
