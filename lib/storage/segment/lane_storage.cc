// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/lane_storage.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "lib/base/status.h"
#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {
namespace {

constexpr char kLanesFolder[] = "lanes";
// Threads that read another's lane, in a process with a lane of its own. Gets that land in place use the ring anyway.
constexpr uint32_t kOthersThreads = 2;
// Descriptors that the lanes of others leave to the own one and to the rest of the process.
constexpr int kSpareDescriptors = 32;
// Where a cursor of all lanes says which one it is in; SegmentStore leaves it 0.
constexpr size_t kCursorLaneAt = 5;

std::optional<uint32_t> LaneOfName(std::string_view name) {
  uint32_t lane = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), lane);
  if (error != std::errc() || end != name.data() + name.size() || lane >= kMaxLanes) return std::nullopt;
  if (std::to_string(lane) != name) return std::nullopt;
  return lane;
}

// Requests of one batch that go to one lane.
struct Group {
  SegmentStorage* store = nullptr;
  std::vector<Request> requests;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LaneStorage>> LaneStorage::Open(const SegmentOptions& options, uint32_t lane) {
  if (options.path.empty() || options.path.find('\0') != std::string::npos) {
    return base::InvalidArgument("path", "is empty or holds a NUL");
  }
  if (lane >= kMaxLanes && lane != kAnyLane) {
    return base::InvalidArgument("lane", std::to_string(lane) + " is above " + std::to_string(kMaxLanes - 1));
  }
  Os& os = *options.os;
  uint32_t made = 0;
  if (!options.read_only) {
    absl::Status status = MakeFolders(os, options.path + "/" + kLanesFolder, &made);
    if (!status.ok()) return status;
  }
  const int root = os.OpenAt(AT_FDCWD, options.path.c_str(), O_RDONLY | O_DIRECTORY, 0);
  if (root < 0) {
    return options.read_only ? base::IoError("open", options.path, -root) : PlaceError("open", options.path, -root);
  }
  std::unique_ptr<LaneStorage> storage(new LaneStorage(options, root));
  if (!options.read_only) {
    absl::Status status = storage->OpenOwn(lane);
    if (status.ok()) status = storage->SyncFolders(made);
    if (!status.ok()) return status;
  }
  base::MutexLock lock(storage->follow_mutex_);
  if (absl::Status status = storage->FindLanes(); !status.ok()) return status;
  return storage;
}

LaneStorage::LaneStorage(const SegmentOptions& options, int root)
    : options_(options),
      owner_(getpid()),
      directory_{*options.os, root, options_.path},
      marks_(directory_),
      others_(std::make_shared<const Others>()) {
  limits_.persistent = true;
  limits_.read_only = options.read_only;
  limits_.followed = true;
  limits_.max_requests = options.max_requests;
}

LaneStorage::~LaneStorage() { directory_.os.Close(directory_.root); }

std::string LaneStorage::PathOf(uint32_t lane) const {
  return options_.path + "/" + kLanesFolder + "/" + std::to_string(lane);
}

absl::Status LaneStorage::OpenOwn(uint32_t lane) {
  const uint32_t first = lane == kAnyLane ? 0 : lane;
  const uint32_t last = lane == kAnyLane ? kMaxLanes - 1 : lane;
  absl::Status status;
  for (uint32_t number = first; number <= last; ++number) {
    SegmentOptions options = options_;
    options.path = PathOf(number);
    absl::StatusOr<std::unique_ptr<SegmentStorage>> opened = SegmentStorage::Open(options);
    status = opened.status();
    if (status.ok()) {
      own_ = *std::move(opened);
      lane_ = number;
      limits_ = own_->capabilities();
      limits_.followed = true;
      return status;
    }
    if (base::CodeOf(status) != base::Code::kLocked) return status;
  }
  if (lane != kAnyLane) return status;
  return base::MakeStatus(base::Code::kLocked, "lane",
                          "all " + std::to_string(kMaxLanes) + " lanes of " + options_.path + " have their writers");
}

// The names of the lanes and the root's own, at every opening, since an earlier one may have been stopped before; and
// of what lies above.
absl::Status LaneStorage::SyncFolders(uint32_t made) {
  constexpr uint32_t kOwn = 1, kRootsName = 2;
  std::string name = kLanesFolder;
  for (uint32_t i = 0; i <= std::max(made, kRootsName); ++i, name += "/..") {
    Descriptor folder(directory_.os, directory_.os.OpenAt(directory_.root, name.c_str(), O_RDONLY | O_DIRECTORY, 0));
    // A folder of somebody else's need not be readable.
    if (folder.get() == -EACCES && i > std::max(made, kOwn)) break;
    const int result = folder.ok() ? directory_.os.Fsync(folder.get()) : folder.get();
    if (result < 0) return WriteError(directory_, "flush", name.c_str(), result);
  }
  return absl::OkStatus();
}

absl::Status LaneStorage::CheckUsable() const {
  if (getpid() != owner_) {
    return base::MakeStatus(base::Code::kForked, "storage", "opened by the parent of this forked process");
  }
  if (closed_) return base::MakeStatus(base::Code::kInvalidState, "storage", "closed");
  return absl::OkStatus();
}

std::shared_ptr<const LaneStorage::Others> LaneStorage::others() const {
  base::MutexLock lock(mutex_);
  return others_;
}

// ---- Requests ------------------------------------------------------------------------------------------------------

// Null when no lane has it.
absl::StatusOr<SegmentStorage*> LaneStorage::HolderOf(const Others& others, const Key& key) {
  SegmentStorage* holder = own_.get();
  for (size_t i = 0;; ++i) {
    if (holder != nullptr) {
      const absl::StatusOr<std::optional<uint64_t>> found = holder->Stat(key);
      if (!found.ok()) return found.status();
      if (found->has_value()) return holder;
    }
    if (i == others.size()) return nullptr;
    holder = others[i].store.get();
  }
}

absl::Status LaneStorage::Submit(std::span<const Request> requests) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (absl::Status status = CheckBatch(requests, limits_); !status.ok()) return status;
  const std::shared_ptr<const Others> others = this->others();
  std::vector<Group> groups;
  std::vector<Request> absent;
  for (const Request& request : requests) {
    const Get* get = std::get_if<Get>(&request.operation);
    absl::StatusOr<SegmentStorage*> store = own_.get();
    if (get != nullptr) store = HolderOf(*others, get->key);
    if (!store.ok()) return store.status();
    if (*store == nullptr) {
      absent.push_back(request);
      continue;
    }
    const auto same = [&](const Group& group) { return group.store == *store; };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.insert(groups.end(), {*store, {}});
    group->requests.push_back(request);
  }
  // The first lane's answer is the batch's; what a later one refuses completes with its refusal.
  for (size_t i = 0; i < groups.size(); ++i) {
    const absl::Status status = groups[i].store->Submit(groups[i].requests);
    if (status.ok()) continue;
    if (i == 0) return status;
    for (const Request& request : groups[i].requests) request.completion.Run({status, 0});
  }
  for (const Request& request : absent) {
    request.completion.Run({base::MakeStatus(base::Code::kNotFound, "key", "no such record"), 0});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> LaneStorage::Stat(const Key& key) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  const absl::StatusOr<SegmentStorage*> holder = HolderOf(*others(), key);
  if (!holder.ok()) return holder.status();
  if (*holder == nullptr) return std::optional<uint64_t>();
  return (*holder)->Stat(key);
}

absl::Status LaneStorage::Remove(const Key& key) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (own_ == nullptr) return base::MakeStatus(base::Code::kReadOnly, "remove", "the store is open for reading only");
  return own_->Remove(key);
}

absl::Status LaneStorage::Sync() {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (own_ == nullptr) return absl::OkStatus();
  // The marks first: what the lane has belongs to the lives that they name.
  if (absl::Status status = marks_.Flush(); !status.ok()) return status;
  return own_->Sync();
}

absl::Status LaneStorage::List(const Cursor& cursor, uint64_t limit, ListPage* page) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (own_ != nullptr) return own_->List(cursor, limit, page);
  const std::shared_ptr<const Others> others = this->others();
  const auto place = static_cast<uint8_t>(cursor.bytes[kCursorLaneAt]);
  // By number: lanes that are found between two pages change no place.
  const auto at = std::find_if(others->begin(), others->end(), [&](const Other& other) { return other.lane >= place; });
  *page = {};
  page->done = at == others->end();
  if (page->done) return absl::OkStatus();
  Cursor inner = cursor;
  inner.bytes[kCursorLaneAt] = std::byte{0};
  if (at->lane != place) inner = {};
  if (absl::Status status = at->store->List(inner, limit, page); !status.ok()) return status;
  const bool lane_done = std::exchange(page->done, false);
  if (lane_done) page->next = {};
  page->next.bytes[kCursorLaneAt] = static_cast<std::byte>(at->lane + (lane_done ? 1 : 0));
  return absl::OkStatus();
}

absl::Status LaneStorage::Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) {
  if (own_ == nullptr) return Storage::Visit(visit, skipped);
  absl::Status status = CheckUsable();
  return status.ok() ? own_->Visit(visit, skipped) : status;
}

uint64_t LaneStorage::StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const {
  return SegmentStore::StoredBytes(payload_bytes, meta_bytes);
}

uint64_t LaneStorage::UsedBytes() const {
  if (own_ != nullptr) return own_->UsedBytes();
  uint64_t bytes = 0;
  for (const Other& other : *others()) bytes += other.store->UsedBytes();
  return bytes;
}

uint64_t LaneStorage::UnreadableBlocks() const {
  uint64_t blocks = own_ != nullptr ? own_->UnreadableBlocks() : 0;
  for (const Other& other : *others()) blocks += other.store->UnreadableBlocks();
  return blocks;
}

absl::Status LaneStorage::Close(std::chrono::nanoseconds patience) {
  if (getpid() != owner_) return CheckUsable();
  const auto begin = std::chrono::steady_clock::now();
  closed_ = true;
  const auto left = [&] {
    if (patience == std::chrono::nanoseconds::max()) return patience;
    return std::max<std::chrono::nanoseconds>(patience - (std::chrono::steady_clock::now() - begin), {});
  };
  absl::Status status = own_ == nullptr ? absl::OkStatus() : own_->Close(left());
  base::MutexLock lock(follow_mutex_);  // no lane is opened any more
  for (const Other& other : *others()) status.Update(other.store->Close(left()));
  return status;
}

// ---- Following -----------------------------------------------------------------------------------------------------

// A new descriptor is the lowest that is free: its number tells how many are taken.
absl::StatusOr<bool> LaneStorage::HasSpareDescriptors() {
  const Descriptor next(directory_.os, directory_.os.OpenAt(directory_.root, ".", O_RDONLY | O_DIRECTORY, 0));
  if (!next.ok()) return ReadError(directory_, "open", ".", next.get());
  return next.get() < directory_.os.DescriptorLimit() - kSpareDescriptors;
}

absl::Status LaneStorage::FindLanes() {
  std::vector<uint32_t> found;
  const int result = directory_.os.ReadDirectory(directory_.root, kLanesFolder, [&](std::string_view name) {
    if (const std::optional<uint32_t> lane = LaneOfName(name); lane.has_value()) found.push_back(*lane);
  });
  if (result == -ENOENT) return absl::OkStatus();
  if (result < 0) return ReadError(directory_, "read", kLanesFolder, result);
  const std::shared_ptr<const Others> before = others();
  Others now = *before;
  for (const uint32_t lane : found) {
    const bool known = std::any_of(before->begin(), before->end(), [&](const Other& o) { return o.lane == lane; });
    if (known || lane == lane_ || refused_.contains(lane)) continue;
    const absl::StatusOr<bool> spare = HasSpareDescriptors();
    if (!spare.ok()) return spare.status();
    if (!*spare && (own_ != nullptr || !now.empty())) break;  // those that are left are there at another look
    SegmentOptions options = options_;
    options.path = PathOf(lane);
    options.read_only = true;
    if (own_ != nullptr) options.io_threads = std::min(options.io_threads, kOthersThreads);
    absl::StatusOr<std::unique_ptr<SegmentStorage>> opened = SegmentStorage::Open(options);
    if (!opened.ok()) {
      // Alone, a lane that cannot be read is an error of this opening; beside others it is left out.
      if (found.size() == 1 && own_ == nullptr && before->empty()) return opened.status();
      const base::Code code = base::CodeOf(opened.status());
      if (code == base::Code::kCorrupt || code == base::Code::kFormatTooNew) refused_.insert(lane);
      continue;
    }
    // One that is being made is there at another look.
    if ((*opened)->made()) now.push_back({lane, *std::move(opened)});
  }
  if (now.size() == before->size()) return absl::OkStatus();
  std::sort(now.begin(), now.end(), [](const Other& a, const Other& b) { return a.lane < b.lane; });
  auto replaced = std::make_shared<const Others>(std::move(now));
  base::MutexLock lock(mutex_);
  others_ = std::move(replaced);
  return absl::OkStatus();
}

absl::Status LaneStorage::Follow(uint64_t limit, FeedPage* page) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (limit == 0) return base::InvalidArgument("limit", "is 0");
  base::MutexLock lock(follow_mutex_);
  if (closed_) return CheckUsable();
  followed_ = true;
  if (turn_ == 0) {
    if (absl::Status status = FindLanes(); !status.ok()) return status;
  }
  const std::shared_ptr<const Others> others = this->others();
  FeedPage result;
  for (bool more = false; turn_ < others->size() && !more && result.entries.size() < limit;) {
    FeedPage part;
    // A lane that cannot be read now keeps what is known of it.
    const absl::Status status = (*others)[turn_].store->Follow(limit - result.entries.size(), &part);
    for (FeedEntry& entry : part.entries) {
      if (absl::Status settled = Settle(*others, turn_, std::move(entry), &result); !settled.ok()) return settled;
    }
    more = status.ok() && !part.done;
    if (!more) ++turn_;
  }
  result.done = turn_ >= others->size();
  if (result.done) turn_ = 0;
  *page = std::move(result);
  return absl::OkStatus();
}

// Nothing changes in the lanes meanwhile: only Follow reads on. So a key that a lower lane has was told with that one
// (I1).
absl::Status LaneStorage::VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit) {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  base::MutexLock lock(follow_mutex_);
  if (closed_) return CheckUsable();
  if (followed_) return absl::OkStatus();
  const std::shared_ptr<const Others> others = this->others();
  for (size_t i = 0; i < others->size(); ++i) {
    const auto lower_has = [&](const Key& key) {
      return std::any_of(others->begin(), others->begin() + static_cast<ptrdiff_t>(i), [&](const Other& other) {
        const absl::StatusOr<std::optional<uint64_t>> found = other.store->Stat(key);
        return found.ok() && found->has_value();
      });
    };
    const auto visit_own = [&](const RecordView& record) {
      if (!lower_has(record.key)) visit(record);
    };
    // As in Follow, a lane that cannot be read now is told of later.
    static_cast<void>((*others)[i].store->VisitOthers(visit_own));
  }
  return absl::OkStatus();
}

// What a change in lane number `from` is for who sees one record of each key (I1).
absl::Status LaneStorage::Settle(const Others& others, size_t from, FeedEntry entry, FeedPage* page) {
  const Key& key = entry.record.key;
  for (size_t i = 0; i < others.size(); ++i) {
    if (i == from) {
      if (!entry.gone) break;
      continue;
    }
    absl::StatusOr<std::optional<ListEntry>> found = others[i].store->Find(key);
    if (!found.ok()) return found.status();
    if (!found->has_value()) continue;
    if (i < from) return absl::OkStatus();  // has been told, and stays
    entry = {**std::move(found), false};
    break;
  }
  page->entries.push_back(std::move(entry));
  return absl::OkStatus();
}

}  // namespace kvstrata::core::storage
