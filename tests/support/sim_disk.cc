// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_disk.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace kvstrata::test {

namespace base = core::base;

namespace {

// "a/b/../c/." without its dots; paths of the tests never go above where they begin.
std::string Plain(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
    begin = end + 1;
  }
  std::string plain;
  for (const std::string& part : parts) plain += "/" + part;
  return plain.empty() ? "/" : plain;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

SimDisk::SimDisk() {
  base::MutexLock lock(mutex_);
  Make("/", true);
  durable_names_ = names_;
}

void SimDisk::StopAt(uint64_t nth, uint64_t seed) {
  base::MutexLock lock(mutex_);
  stop_at_ = changes_ + nth;
  stop_random_ = base::SeededRandom(seed);
}

bool SimDisk::stopped() {
  base::MutexLock lock(mutex_);
  return stopped_;
}

std::string SimDisk::stopped_in() {
  base::MutexLock lock(mutex_);
  const File file = Find(stopped_in_);
  if (file != nullptr && file->folder) return "folder";
  std::string kind = stopped_in_.substr(stopped_in_.rfind('/') + 1);
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

void SimDisk::FailAt(uint64_t nth, uint64_t seed) {
  base::MutexLock lock(mutex_);
  fail_at_ = changes_ + nth;
  failed_ = false;
  stop_random_ = base::SeededRandom(seed);
}

bool SimDisk::failed() {
  base::MutexLock lock(mutex_);
  return failed_;
}

uint64_t SimDisk::changes() {
  base::MutexLock lock(mutex_);
  return changes_;
}

void SimDisk::Restart() {
  base::MutexLock lock(mutex_);
  open_.clear();
  stopped_ = false;
  stop_at_ = 0;
  fail_at_ = 0;
}

void SimDisk::LosePower(uint64_t seed) {
  Restart();
  base::MutexLock lock(mutex_);
  base::SeededRandom random(seed);
  std::set<std::string> names;
  for (const auto& [name, file] : names_) names.insert(name);
  for (const auto& [name, file] : durable_names_) names.insert(name);
  std::map<std::string, File> left;
  for (const std::string& name : names) {
    const auto now = names_.find(name), durable = durable_names_.find(name);
    const auto& [chosen, other] =
        random.Below(2) == 0 ? std::pair(now, names_.end()) : std::pair(durable, durable_names_.end());
    // What lies in a folder that is not there is not there either.
    if (chosen != other && (name == "/" || left.contains(FolderOf(name)))) left[name] = chosen->second;
  }
  std::set<Inode*> files;
  for (const auto& [name, file] : left) {
    if (files.insert(file.get()).second) LoseSectors(*file, random);
  }
  names_ = left;
  durable_names_ = left;
}

void SimDisk::LoseSectors(Inode& file, base::SeededRandom& random) {
  // The length that was flushed, or the later one.
  const size_t size = random.Below(2) == 0 ? file.now.size() : file.durable.size();
  std::vector<std::byte> left = file.durable;
  left.resize(size);
  file.now.resize(size);
  for (size_t at = 0; at < size; at += kSector) {
    const size_t bytes = std::min<size_t>(kSector, size - at);
    const auto now = file.now.begin() + static_cast<ptrdiff_t>(at), was = left.begin() + static_cast<ptrdiff_t>(at);
    if (std::equal(now, now + static_cast<ptrdiff_t>(bytes), was)) continue;
    const uint64_t fate = random.Below(8);
    if (fate < 4) std::copy_n(now, bytes, was);                                         // written
    if (fate == 7) static_cast<void>(random.Fill(base::MutableBytes(&*was, bytes)));    // torn
    if (fate == 6) std::copy_n(now, static_cast<ptrdiff_t>(random.Below(bytes)), was);  // written in part
  }
  file.now = left;
  file.durable = std::move(left);
}

std::vector<std::byte>* SimDisk::BytesOf(const std::string& path) {
  base::MutexLock lock(mutex_);
  const File file = Find(Plain(path));
  return file == nullptr ? nullptr : &file->now;
}

std::vector<std::string> SimDisk::Files() {
  base::MutexLock lock(mutex_);
  std::vector<std::string> files;
  for (const auto& [name, file] : names_) {
    if (!file->folder) files.push_back(name);
  }
  return files;
}

// ---- Helpers -------------------------------------------------------------------------------------------------------

std::string SimDisk::PathOf(int directory, const char* path) {
  const auto folder = open_.find(directory);
  return Plain(path[0] == '/' || folder == open_.end() ? path : folder->second.path + "/" + path);
}

SimDisk::File SimDisk::Find(const std::string& path) {
  const auto found = names_.find(path);
  return found == names_.end() ? nullptr : found->second;
}

SimDisk::File SimDisk::Make(const std::string& path, bool folder) {
  auto file = std::make_shared<Inode>();
  file->number = next_inode_++;
  file->folder = folder;
  names_[path] = file;
  return file;
}

bool SimDisk::Enter(const std::string& path, bool* part) {
  *part = false;
  if (stopped_) return false;
  ++changes_;
  const bool fails = changes_ == fail_at_;
  const bool stops = stop_at_ != 0 && changes_ >= stop_at_;
  if (!fails && !stops) return true;
  stopped_ = stops;
  failed_ = failed_ || fails;
  stopped_in_ = path;
  *part = true;
  return false;
}

int SimDisk::Stat(const File& file, struct stat* out) {
  *out = {};
  // No device of a real machine, and another one for each disk.
  out->st_dev = reinterpret_cast<uintptr_t>(this);
  out->st_ino = file->number;
  out->st_mode = file->folder ? S_IFDIR | 0700 : S_IFREG | 0600;
  out->st_size = static_cast<off_t>(file->now.size());
  return 0;
}

// ---- Os ------------------------------------------------------------------------------------------------------------

int SimDisk::OpenAt(int directory, const char* path, int flags, mode_t) {
  base::MutexLock lock(mutex_);
  const std::string name = PathOf(directory, path);
  File file = Find(name);
  bool part = false;
  if (stopped_) return -EIO;
  if (file != nullptr && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return -EEXIST;
  if (file == nullptr) {
    if ((flags & O_CREAT) == 0 || Find(FolderOf(name)) == nullptr) return -ENOENT;
    if (!Enter(name, &part)) return -EIO;
    file = Make(name, false);
  }
  open_[next_fd_] = {file, name};
  return next_fd_++;
}

int SimDisk::Close(int fd) {
  base::MutexLock lock(mutex_);
  open_.erase(fd);
  return 0;
}

int64_t SimDisk::Pread(int fd, base::MutableBytes to, uint64_t offset) {
  base::MutexLock lock(mutex_);
  if (stopped_ || !open_.contains(fd)) return -EIO;
  const std::vector<std::byte>& bytes = open_[fd].file->now;
  if (offset >= bytes.size()) return 0;
  const size_t count = std::min<size_t>(to.size(), bytes.size() - offset);
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), count, to.begin());
  return static_cast<int64_t>(count);
}

int64_t SimDisk::Pwritev(int fd, std::span<const iovec> from, uint64_t offset) {
  base::MutexLock lock(mutex_);
  bool part = false;
  if (!open_.contains(fd)) return -EIO;
  const bool stop = !Enter(open_[fd].path, &part);
  if (stop && !part) return -EIO;
  std::vector<std::byte> all;
  for (const iovec& piece : from) {
    const auto* begin = static_cast<const std::byte*>(piece.iov_base);
    all.insert(all.end(), begin, begin + piece.iov_len);
  }
  if (stop) all.resize(stop_random_.Below(all.size() + 1));
  std::vector<std::byte>& bytes = open_[fd].file->now;
  if (!all.empty() && bytes.size() < offset + all.size()) bytes.resize(offset + all.size());
  std::copy(all.begin(), all.end(), bytes.begin() + static_cast<ptrdiff_t>(offset));
  return stop ? -EIO : static_cast<int64_t>(all.size());
}

int SimDisk::Fsync(int fd) {
  base::MutexLock lock(mutex_);
  bool part = false;
  if (!open_.contains(fd) || !Enter(open_[fd].path, &part)) return -EIO;
  const Open& open = open_[fd];
  open.file->durable = open.file->now;
  if (!open.file->folder) return 0;
  const auto inside = [&](const std::string& name) { return name != "/" && FolderOf(name) == open.path; };
  std::erase_if(durable_names_, [&](const auto& entry) { return inside(entry.first); });
  for (const auto& [name, file] : names_) {
    if (inside(name)) durable_names_[name] = file;
  }
  return 0;
}

int SimDisk::Allocate(int fd, uint64_t offset, uint64_t bytes) {
  base::MutexLock lock(mutex_);
  bool part = false;
  if (!open_.contains(fd) || !Enter(open_[fd].path, &part)) return -EIO;
  std::vector<std::byte>& now = open_[fd].file->now;
  now.resize(std::max<size_t>(now.size(), offset + bytes));
  return 0;
}

int SimDisk::Truncate(int fd, uint64_t bytes) {
  base::MutexLock lock(mutex_);
  bool part = false;
  if (!open_.contains(fd) || !Enter(open_[fd].path, &part)) return -EIO;
  open_[fd].file->now.resize(bytes);
  return 0;
}

int SimDisk::Fstat(int fd, struct stat* out) {
  base::MutexLock lock(mutex_);
  return stopped_ || !open_.contains(fd) ? -EIO : Stat(open_[fd].file, out);
}

int SimDisk::StatAt(int directory, const char* path, struct stat* out) {
  base::MutexLock lock(mutex_);
  const File file = Find(PathOf(directory, path));
  if (stopped_) return -EIO;
  return file == nullptr ? -ENOENT : Stat(file, out);
}

int SimDisk::Fchmod(int, mode_t) { return stopped() ? -EIO : 0; }

int SimDisk::MkdirAt(int directory, const char* path, mode_t) {
  base::MutexLock lock(mutex_);
  const std::string name = PathOf(directory, path);
  bool part = false;
  if (stopped_) return -EIO;
  if (Find(name) != nullptr) return -EEXIST;
  if (Find(FolderOf(name)) == nullptr) return -ENOENT;
  if (!Enter(name, &part)) return -EIO;
  Make(name, true);
  return 0;
}

int SimDisk::ChmodAt(int, const char*, mode_t) { return stopped() ? -EIO : 0; }

int SimDisk::RenameAt(int directory, const char* from, const char* to) {
  base::MutexLock lock(mutex_);
  bool part = false;
  const std::string name = PathOf(directory, from);
  if (!Enter(name, &part)) return -EIO;
  if (Find(name) == nullptr) return -ENOENT;
  names_[PathOf(directory, to)] = names_[name];
  names_.erase(name);
  return 0;
}

int SimDisk::UnlinkAt(int directory, const char* path) {
  base::MutexLock lock(mutex_);
  bool part = false;
  const std::string name = PathOf(directory, path);
  if (stopped_) return -EIO;
  if (Find(name) == nullptr) return -ENOENT;
  if (!Enter(name, &part)) return -EIO;
  names_.erase(name);
  return 0;
}

int SimDisk::ReadDirectory(int directory, const char* path, absl::FunctionRef<void(std::string_view)> visit) {
  std::vector<std::string> found;
  {
    base::MutexLock lock(mutex_);
    const std::string folder = PathOf(directory, path);
    if (stopped_) return -EIO;
    if (Find(folder) == nullptr) return -ENOENT;
    for (const auto& [name, file] : names_) {
      if (name != "/" && FolderOf(name) == folder) found.push_back(name.substr(name.rfind('/') + 1));
    }
  }
  for (const std::string& name : found) visit(name);
  return 0;
}

int SimDisk::LockFile(int) { return stopped() ? -EIO : 0; }

int64_t SimDisk::BlockBytes(int) { return stopped() ? -EIO : 4096; }

}  // namespace kvstrata::test
