// SPDX-License-Identifier: Apache-2.0
#include "tests/support/grid_model.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/support/fake_random.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvstrata::test {
namespace {

using kernels::cuda::Grid;
using kernels::cuda::GridMachine;
using kernels::cuda::kWarp;
using kernels::cuda::Thread;

// A kernel's frames are small; sanitizers make them several times larger. A page below that must not be touched.
constexpr size_t kStackBytes = 256u << 10;

uint64_t seed = 1;
uint64_t launches = 0;
uint64_t loaded_bytes = 0;
uint32_t most_shared_bytes = 227u << 10;
uint32_t multiprocessors = 2;
std::vector<std::string> faults;
LaunchSeen launched;
bool few_blocks = false;

class Stack {
 public:
  Stack() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void* memory = mmap(nullptr, kStackBytes + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    mprotect(memory_, page_, PROT_NONE);
  }
  ~Stack() { munmap(memory_, kStackBytes + page_); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  std::byte* bottom() const { return memory_ + page_; }

 private:
  size_t page_;
  std::byte* memory_;
};

// Contexts know nothing of AddressSanitizer, which keeps a shadow of the stack it believes to be on.
struct Fibre {
  ucontext_t context{};
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t bytes = 0;
};

void Switch(Fibre& from, Fibre& to, [[maybe_unused]] bool from_ends) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
  swapcontext(&from.context, &to.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

enum class State { kRunnable, kAtBarrier, kAtExchange, kEnded };

class Block final : public GridMachine {
 public:
  Block(uint32_t threads, std::vector<std::unique_ptr<Stack>>* stacks) : fibres_(threads), stacks_(*stacks) {
    while (stacks_.size() < threads) stacks_.push_back(std::make_unique<Stack>());
  }

  // "" or what is wrong with the kernel.
  std::string Run(const Grid& grid, uint32_t number, void (*body)(const void*, Thread&), const void* kernel, Rng& rng) {
    grid_ = grid;
    number_ = number;
    body_ = body;
    kernel_ = kernel;
    states_.assign(fibres_.size(), State::kRunnable);
    given_.assign(fibres_.size(), Words{});
    got_.assign(fibres_.size(), Words{});
    copies_.assign(fibres_.size(), {});
    groups_.assign(fibres_.size(), 0);
    rng_ = &rng;
    // Exactly as long as asked, so that what lies behind it is not the kernel's.
    shared_ = std::make_unique<kernels::cuda::Word16[]>((grid.shared_bytes + sizeof(kernels::cuda::Word16) - 1) /
                                                        sizeof(kernels::cuda::Word16));
    auto* bytes = reinterpret_cast<unsigned char*>(shared_.get());
    for (uint32_t i = 0; i < grid.shared_bytes; ++i) bytes[i] = static_cast<unsigned char>(rng.Next());
    for (uint32_t t = 0; t < fibres_.size(); ++t) Prepare(t);
    runnable_.clear();
    for (uint32_t t = 0; t < fibres_.size(); ++t) runnable_.push_back(t);
    OrderWarps();
    while (true) {
      while (!runnable_.empty()) {
        const size_t pick = rng.Below(runnable_.size());
        const uint32_t thread = runnable_[pick];
        runnable_[pick] = runnable_.back();
        runnable_.pop_back();
        running_ = thread;
        Switch(scheduler_, fibres_[thread], false);
      }
      if (AllIn(State::kEnded))
        return fault_.empty() ? CopiesLeft() : "block " + std::to_string(number_) + ": " + fault_;
      if (!Meet()) return "block " + std::to_string(number_) + ": " + Describe();
    }
  }

  void Sync(uint32_t thread) override { Wait(thread, State::kAtBarrier); }

  const Words* Exchange(uint32_t thread, const Words& mine) override {
    given_[thread] = mine;
    Wait(thread, State::kAtExchange);
    return &got_[thread / kWarp * kWarp];
  }

  void* shared() override { return shared_.get(); }

  void Loads(uint64_t bytes) override { loaded_bytes += bytes; }

  // Half of the copies are done at once, the others when they are awaited: until then their place holds anything.
  void CopyAsync(uint32_t thread, void* to, const void* from, uint32_t bytes) override {
    if ((bytes != 4 && bytes != 8 && bytes != 16) || reinterpret_cast<uintptr_t>(to) % bytes != 0 ||
        reinterpret_cast<uintptr_t>(from) % bytes != 0) {
      fault_ = "thread " + std::to_string(thread) + " copies " + std::to_string(bytes) + " bytes that are not aligned";
    }
    if (rng_->Chance(50)) {
      std::memcpy(to, from, bytes);
      return;
    }
    const uint64_t noise[2] = {rng_->Next(), rng_->Next()};
    std::memcpy(to, noise, bytes);
    copies_[thread].push_back({to, from, bytes, groups_[thread]});
  }

  void CommitCopies(uint32_t thread) override { ++groups_[thread]; }

  void AwaitCopies(uint32_t thread, uint32_t left) override {
    std::vector<Copy> later;
    for (const Copy& copy : copies_[thread]) {
      // A group that was not committed is not awaited.
      if (copy.group + left < groups_[thread]) {
        std::memcpy(copy.to, copy.from, copy.bytes);
      } else {
        later.push_back(copy);
      }
    }
    copies_[thread] = std::move(later);
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    uint32_t bytes;
    uint64_t group;
  };

  // What no thread has awaited, or "".
  std::string CopiesLeft() const {
    for (uint32_t t = 0; t < copies_.size(); ++t) {
      if (copies_[t].empty()) continue;
      return "block " + std::to_string(number_) + ": thread " + std::to_string(t) + " has ended with " +
             std::to_string(copies_[t].size()) + " copies under way";
    }
    return "";
  }

  static void Enter(uint32_t high, uint32_t low) {
    auto* block = reinterpret_cast<Block*>(uintptr_t{high} << 32 | low);
    block->RunThread();
  }

  void RunThread() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_.bottom, &scheduler_.bytes);
#endif
    const uint32_t thread = running_;
    Thread place(*this, thread, static_cast<uint32_t>(fibres_.size()), number_, grid_.blocks);
    body_(kernel_, place);
    states_[thread] = State::kEnded;
    Switch(fibres_[thread], scheduler_, true);
  }

  void Prepare(uint32_t thread) {
    Fibre& fibre = fibres_[thread];
    fibre = {};
    getcontext(&fibre.context);
    fibre.bottom = stacks_[thread]->bottom();
    fibre.bytes = kStackBytes;
    fibre.context.uc_stack.ss_sp = stacks_[thread]->bottom();
    fibre.context.uc_stack.ss_size = kStackBytes;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&fibre.context, reinterpret_cast<void (*)()>(Enter), 2, static_cast<uint32_t>(address >> 32),
                static_cast<uint32_t>(address));
  }

  void Wait(uint32_t thread, State state) {
    states_[thread] = state;
    Switch(fibres_[thread], scheduler_, false);
  }

  bool AllIn(State state) const {
    for (const State s : states_) {
      if (s != state) return false;
    }
    return true;
  }

  void Release(uint32_t thread) {
    states_[thread] = State::kRunnable;
    runnable_.push_back(thread);
  }

  // No thread can run: lets go those that have all met. False: there are none.
  bool Meet() {
    const auto threads = static_cast<uint32_t>(fibres_.size());
    if (AllIn(State::kAtBarrier)) {
      for (uint32_t t = 0; t < threads; ++t) Release(t);
      OrderWarps();
      return true;
    }
    // One warp runs as far ahead of the others as barriers let it.
    for (const uint32_t warp : warps_) {
      const uint32_t first = warp * kWarp;
      bool all = true;
      for (uint32_t t = first; all && t < first + kWarp; ++t) all = states_[t] == State::kAtExchange;
      if (!all) continue;
      // Nobody reads the last exchange any more: all lanes are here.
      for (uint32_t t = first; t < first + kWarp; ++t) {
        got_[t] = given_[t];
        Release(t);
      }
      return true;
    }
    return false;
  }

  // Which warp goes first from one barrier of the block to the next.
  void OrderWarps() {
    const auto count = static_cast<uint32_t>(fibres_.size() / kWarp);
    warps_.resize(count);
    for (uint32_t i = 0; i < count; ++i) warps_[i] = i;
    for (uint32_t i = count; i > 1; --i) std::swap(warps_[i - 1], warps_[rng_->Below(i)]);
  }

  std::string Describe() const {
    uint64_t counts[4] = {};
    for (const State s : states_) ++counts[static_cast<int>(s)];
    return std::to_string(counts[1]) + " threads wait at a barrier, " + std::to_string(counts[2]) +
           " at an exchange, " + std::to_string(counts[3]) + " have ended: they will never meet";
  }

  std::vector<Fibre> fibres_;
  Fibre scheduler_;
  std::vector<std::unique_ptr<Stack>>& stacks_;
  std::vector<State> states_;
  std::vector<Words> given_, got_;
  std::vector<std::vector<Copy>> copies_;
  std::vector<uint64_t> groups_;  // that each thread has committed
  std::string fault_;             // that did not keep the block from going on
  Rng* rng_ = nullptr;
  std::vector<uint32_t> runnable_;
  std::vector<uint32_t> warps_;  // in the order in which they are let go from exchanges
  uint32_t running_ = 0;
  std::unique_ptr<kernels::cuda::Word16[]> shared_;
  Grid grid_;
  uint32_t number_ = 0;
  void (*body_)(const void*, Thread&) = nullptr;
  const void* kernel_ = nullptr;
};

}  // namespace

void SeedGridModel(uint64_t value) { seed = value; }

void SetMostSharedBytes(uint32_t bytes) { most_shared_bytes = bytes; }

void SetMultiprocessors(uint32_t count) { multiprocessors = count; }

void SetFewBlocks(bool few) { few_blocks = few; }

void OnLaunch(LaunchSeen seen) { launched = std::move(seen); }

std::vector<std::string> TakeGridFaults() { return std::exchange(faults, {}); }

uint64_t GridLaunches() { return launches; }

uint64_t GridLoadedBytes() { return loaded_bytes; }

}  // namespace kvstrata::test

namespace kvstrata::kernels::cuda {

uint32_t MostSharedBytes() { return kvstrata::test::most_shared_bytes; }

uint32_t Multiprocessors() { return kvstrata::test::multiprocessors; }

void RunOnModel(const Grid& asked, const ModelKernel& kernel, const void* arguments) {
  Grid grid = asked;
  static std::vector<std::unique_ptr<kvstrata::test::Stack>> stacks;
  ++kvstrata::test::launches;
  if (kvstrata::test::launched) {
    kvstrata::test::launched(grid, kernel);
    return;
  }
  const uint32_t threads = kernel.threads;
  if (threads == 0 || threads % kWarp != 0 || threads > 1024) {
    kvstrata::test::faults.push_back(std::to_string(threads) + " threads in a block");
    return;
  }
  if (grid.shared_bytes > kvstrata::test::most_shared_bytes) {
    kvstrata::test::faults.push_back(std::to_string(grid.shared_bytes) + " bytes of shared memory");
    return;
  }
  if (grid.shared_bytes > kernel.most_shared_bytes) {
    kvstrata::test::faults.push_back(std::to_string(grid.shared_bytes) + " bytes of shared memory, where at most " +
                                     std::to_string(kernel.most_shared_bytes) + " were announced");
    return;
  }
  kvstrata::test::Rng rng(kvstrata::test::Mix(kvstrata::test::seed, kvstrata::test::launches));
  if (kvstrata::test::few_blocks && kvstrata::test::launches % 2 == 0) {
    grid.blocks = std::min<uint32_t>(grid.blocks, 1 + static_cast<uint32_t>(rng.Below(3)));
  }
  // Blocks have no order either.
  std::vector<uint32_t> order(grid.blocks);
  for (uint32_t i = 0; i < grid.blocks; ++i) order[i] = i;
  for (uint32_t i = grid.blocks; i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  kvstrata::test::Block block(threads, &stacks);
  for (const uint32_t number : order) {
    std::string fault = block.Run(grid, number, kernel.body, arguments, rng);
    if (fault.empty()) continue;
    kvstrata::test::faults.push_back(std::move(fault));
    return;
  }
}

}  // namespace kvstrata::kernels::cuda
