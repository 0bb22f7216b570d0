// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/capi/session.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace kvstrata::fuzz {
namespace {

constexpr uint64_t kArenaBytes = 256u << 10;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Their allocators may be locked by a thread that the child does not have.
constexpr bool kMayFork = false;
#else
constexpr bool kMayFork = true;
#endif

}  // namespace

TokenArguments::TokenArguments(ByteSource& in, std::vector<int32_t> ids) : ids_(std::move(ids)) {
  ids_.shrink_to_fit();
  std::vector<kvstrata_extra_key> keys;
  if (in.OneIn(8)) {
    const uint64_t count = 1 + in.Below(4);
    uint64_t position = 0;
    for (uint64_t i = 0; i < count; ++i) {
      auto key = Sized<kvstrata_extra_key>();
      key.type = in.Byte();
      position += in.Number(20);
      key.position = position;
      key.bytes = in.OneIn(16) ? nullptr : "an image";
      key.size = in.Count(8);
      keys.push_back(key);
    }
  }
  keys_ = std::make_unique<InputArray<kvstrata_extra_key>>(in, keys);
  auto tokens = Sized<kvstrata_tokens>();
  tokens.ids = ids_.empty() || in.OneIn(32) ? nullptr : ids_.data();
  tokens.count = in.Count(ids_.size());
  tokens.extra_keys = keys_->get();
  tokens.extra_key_count = keys_->count();
  tokens.extra_key_stride = keys_->stride();
  tokens_ = std::make_unique<Input<kvstrata_tokens>>(in, tokens);
}

Session::Session(ByteSource& in) : in_(in), device_(kArenaBytes) {
  // Something to work with, so that not every run must find its way to an open cache.
  auto desc = Sized<kvstrata_layout_desc>();
  auto rows = Sized<kvstrata_stream>();
  rows.kind = KVSTRATA_STREAM_ROWS;
  rows.role = KVSTRATA_ROLE_OTHER;
  rows.ratio = 4;
  rows.row_bytes = 24;
  rows.packing = KVSTRATA_PACKING_RAW;
  auto window = rows;
  window.kind = KVSTRATA_STREAM_STATE;
  window.role = KVSTRATA_ROLE_WINDOW;
  window.ratio = 1;
  window.state_rows = 8;
  const std::array<kvstrata_stream, 2> streams = {rows, window};
  desc.block_tokens = 16;
  desc.replay_mode = KVSTRATA_REPLAY_FULL;
  desc.replay_window = 8;
  desc.replay_layers = 1;
  desc.streams = streams.data();
  desc.stream_count = streams.size();
  kvstrata_layout* layout = nullptr;
  Promise(kvstrata_layout_create(&desc, &layout, nullptr) == KVSTRATA_OK, "session", "no layout");
  layouts_.Add(in_, layout);
  auto options = Sized<kvstrata_cache_options>();
  options.capacity_bytes = 1 << 20;
  options.io_timeout_ms = 100;
  kvstrata_cache* cache = nullptr;
  Promise(kvstrata_cache_open(&options, &cache, nullptr) == KVSTRATA_OK, "session", "no cache");
  caches_.Add(in_, cache);
}

Session::~Session() {
  LetGo();
  // Any kind may go first.
  const uint8_t first = in_.Byte();
  for (uint8_t i = 0; i < 6; ++i) {
    switch ((first + i) % 6) {
      case 0: caches_.Clear(); break;
      case 1: plans_.Clear(); break;
      case 2: layouts_.Clear(); break;
      case 3: spaces_.Clear(); break;
      case 4: writers_.Clear(); break;
      default: matches_.Clear(); break;
    }
  }
  Promise(allocator_.live() == 0, "session", "memory of the caller's allocator is left over");
  Promise(allocator_.mismatches() == 0, "session", "memory was given back as it had not been taken");
  for (const std::string& text : device_.violations()) Promise(false, "device", text.c_str());
  for (const std::string& text : device_.leftovers()) Promise(false, "device", text.c_str());
  for (const auto& one : stores_) Promise(!one->in_use(), "session", "a store was not destroyed exactly once");
}

void Session::Judge(const char* function, kvstrata_status status, ErrorOutput& error,
                    std::initializer_list<const Output*> outputs) {
  Promise(std::strcmp(kvstrata_status_name(status), "KVSTRATA_E_?") != 0, function, "gave a number that is no status");
  Promise(status != KVSTRATA_E_INTERNAL, function, "KVSTRATA_E_INTERNAL");
  error.Check(function, status);
  for (const Output* output : outputs) output->Check(function, status == KVSTRATA_OK);
  if (in_child_ && std::strncmp(function, "kvstrata_layout", 15) != 0) {
    Promise(status != KVSTRATA_OK, function, "worked in a forked child");
  }
}

std::byte* Session::Memory(uint64_t bytes) {
  // Of exactly that size, so that a sanitizer sees what goes beyond; never null, since NULL is an argument of its own.
  memory_.emplace_back(std::max<uint64_t>(bytes, 1), std::byte{0x5a});
  memory_.back().shrink_to_fit();
  return memory_.back().data();
}

// Sequences that share beginnings, so that lookups find something.
std::vector<int32_t> Session::Ids() {
  const auto kind = static_cast<int32_t>(in_.Below(4));
  std::vector<int32_t> ids(in_.Below(200));
  for (size_t p = 0; p < ids.size(); ++p) {
    const auto position = static_cast<int32_t>(p);
    ids[p] = position < 40 * kind ? position : 7 * position + kind;
  }
  return ids;
}

StoreInUse& Session::FreeStore() {
  for (const auto& one : stores_) {
    if (!one->in_use()) return *one;
  }
  stores_.push_back(std::make_unique<StoreInUse>());
  if (in_.OneIn(2)) c_store_start_thread(stores_.back()->store.get());
  return *stores_.back();
}

void Session::LetGo() {
  if (in_child_) return;
  for (const auto& one : stores_) c_store_let_go(one->store.get());
}

void Session::Destroy() {
  LetGo();
  switch (in_.Below(6)) {
    case 0: return caches_.Drop(in_);
    case 1: return layouts_.Drop(in_);
    case 2: return spaces_.Drop(in_);
    case 3: return matches_.Drop(in_);
    case 4: return plans_.Drop(in_);
    default: return writers_.Drop(in_);
  }
}

void Session::Outside() {
  switch (in_.Below(5)) {
    case 0: allocator_.FailNth(1 + in_.Below(4)); break;
    case 1: device_.FailNth(1 + in_.Below(8)); break;
    case 2:
      if (!stores_.empty()) c_store_hold(stores_[in_.Below(stores_.size())]->store.get(), in_.Byte() & 6);
      break;
    case 3: LetGo(); break;
    default: ForkedChild(); break;
  }
}

// The rest of the bytes again, in a child that has inherited everything. What it may do there is be refused.
void Session::ForkedChild() {
  if (!kMayFork || forked_) return;
  forked_ = true;
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a hang must end, too
    in_child_ = true;
    while (!in_.done()) Step();
    caches_.Clear();
    writers_.Clear();
    plans_.Clear();
    _exit(0);
  }
  int status = 0;
  Promise(child > 0 && waitpid(child, &status, 0) == child, "fork", "no child");
  Promise(WIFEXITED(status) && WEXITSTATUS(status) == 0, "fork", "the child crashed or did not end");
}

void Session::Step() {
  const uint64_t what = in_.Below(40);
  // A child may ask what it has inherited; what is outside of the library has locks of its own.
  if (in_child_ && (what == 4 || what == 39)) return;
  switch (what) {
    case 0: return LayoutCreate();
    case 1: return LayoutNamed();
    case 2: return LayoutSimple();
    case 3: return LayoutAsk();
    case 4: return CacheOpen();
    case 5: return CacheClose();
    case 6: return CacheAsk();
    case 7: return CacheEvents();
    case 8: return CacheWork();
    case 9:
    case 10: return NamespaceOpen();
    case 11: return NamespaceWork();
    case 12:
    case 13:
    case 14: return Lookup();
    case 15:
    case 16: return MatchWork();
    case 17:
    case 18: return PlanCreate();
    case 19:
    case 20:
    case 21: return PlanStart();
    case 22:
    case 23: return PlanWait();
    case 24:
    case 25: return WriterOpen();
    case 26: return WriterSource();
    case 27:
    case 28:
    case 29:
    case 30: return WriterFeed();
    case 31: return WriterAdvance();
    case 32:
    case 33: return WriterWork();
    case 34:
    case 35: return WriterCommit();
    case 36:
    case 37:
    case 38: return Destroy();
    default: return Outside();
  }
}

}  // namespace kvstrata::fuzz
