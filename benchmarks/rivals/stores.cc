// SPDX-License-Identifier: Apache-2.0
// Our store against RocksDB, LMDB and a file for each value: the same values of 256 KiB, the same folder, durable at
// the end of the puts, a cold page cache before the gets. Each family plays in several settings, and its best one is
// what we are compared with, in alternating rounds. What a bare file reaches in the same rounds is the most that a
// store could reach against this rival; it depends on the drive: a new one with 1 MiB in each write, and one that is
// read through io_uring in the order of our gets.
//
// usage: stores_benchmark [MIB [FAMILY]]    how much is put in each run, 256 by default: all takes three minutes;
//                                           against families only whose names have this in them
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/ratio.h"
#include "benchmarks/rivals/rival.h"
#include "benchmarks/storage/drive.h"

namespace {

namespace files = std::filesystem;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::Folder;
using kvstrata::benchmarks::kBarePutBytes;
using kvstrata::benchmarks::PrintRatios;
using kvstrata::benchmarks::RawFile;
using kvstrata::benchmarks::Rival;
using kvstrata::benchmarks::Rivals;
using kvstrata::benchmarks::SecondsOf;
using kvstrata::benchmarks::Work;

constexpr size_t kValueBytes = 256u << 10;
constexpr int kPutRounds = 7;
constexpr int kGetRounds = 15;
// How often a setting is tried before the best one is chosen, by its least time.
constexpr int kTries = 3;
constexpr int kColdTries = 100;

// Takes a file out of the page cache; how many of its pages are still there is added to `*resident`.
void TakeFromCache(const files::path& path, uint64_t* resident, uint64_t* pages) {
  const int file = open(path.c_str(), O_RDONLY);
  struct stat info {};
  if (file < 0 || fstat(file, &info) != 0) Fail("a file could not be opened");
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes > 0) {
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    void* const map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    std::vector<unsigned char> seen((bytes + 4095) / 4096);
    if (map == MAP_FAILED || mincore(map, bytes, seen.data()) != 0) Fail("a file could not be looked at");
    for (const unsigned char page : seen) *resident += page & 1u;
    *pages += seen.size();
    munmap(map, bytes);
  }
  close(file);
}

// Takes a folder's files out of the page cache, and makes sure that they are: nothing else may be called cold. What is
// being read ahead cannot be taken until it has come.
void MakeCold(const std::string& folder) {
  for (int i = 0; i < kColdTries; ++i) {
    uint64_t resident = 0;
    uint64_t pages = 0;
    for (const auto& entry : files::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) TakeFromCache(entry.path(), &resident, &pages);
    }
    if (resident * 100 <= pages) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Fail("the page cache would not let go of a file");
}

// A rival in a folder of its own within the benchmark's.
class Place {
 public:
  Place(const Folder& above, Rival& rival, const Work& work) : rival_(rival), work_(work) {
    static int number = 0;
    path_ = above.path() + "/" + std::to_string(number++);
  }
  ~Place() { Clear(); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // Into an empty store.
  double SecondsToPut() {
    Clear();
    files::create_directory(path_);
    rival_.Open(path_);
    const double seconds = SecondsOf([&] { rival_.PutAll(work_); });
    rival_.Close();
    return seconds;
  }
  // Cold once the store is open: what an opening reads and writes (RocksDB makes a table of a log that it finds) would
  // else be there already.
  double SecondsToGet() {
    rival_.Open(path_);
    MakeCold(path_);
    const double seconds = SecondsOf([&] { rival_.GetAll(work_); });
    rival_.Close();
    return seconds;
  }
  Rival& rival() { return rival_; }

 private:
  void Clear() {
    std::error_code ignored;
    files::remove_all(path_, ignored);
  }

  Rival& rival_;
  const Work& work_;
  std::string path_;
};

struct Names {
  const char* put;
  const char* put_goal;
  const char* bare_put;
  const char* get;
  const char* get_goal;
  const char* bare_get;
};

class Contest {
 public:
  Contest(uint64_t values, const char* only) : work_(values, kValueBytes), only_(only) {
    if (bare_ != nullptr) bare_place_.emplace(folder_, *bare_, work_);
  }

  void Against(const char* family, const Names& names, const Rivals& rivals) {
    if (std::strstr(family, only_) == nullptr) return;
    if (rivals.empty()) {
      std::printf("stores: no %s where this was built, left out\n", family);
      return;
    }
    if (names.put != nullptr) {
      Place best(folder_, Best(rivals, &Place::SecondsToPut), work_);
      std::printf("stores: %s puts best as %s\n", family, best.rival().name().c_str());
      PrintRounds(
          names.put, names.put_goal, names.bare_put, kPutRounds, [&] { return ours_place_.SecondsToPut(); },
          [&] { return SecondsOfBarePut(); }, [&] { return best.SecondsToPut(); });
    }
    Place best(folder_, Best(rivals, &Place::SecondsToGet), work_);
    // All are new: a drive may read what was written last at another rate.
    for (Place* const place : {&best, &ours_place_}) place->SecondsToPut();
    if (bare_place_.has_value()) bare_place_->SecondsToPut();
    std::printf("stores: %s gets best as %s\n", family, best.rival().name().c_str());
    PrintRounds(
        names.get, names.get_goal, names.bare_get, kGetRounds, [&] { return ours_place_.SecondsToGet(); },
        [&] { return bare_place_.has_value() ? bare_place_->SecondsToGet() : 0; }, [&] { return best.SecondsToGet(); });
  }

 private:
  // The store, the bare file and the rival one after the other, each round beginning with another. A bare file that
  // takes no time is none.
  template <typename Ours, typename Bare, typename Theirs>
  void PrintRounds(const char* name, const char* goal, const char* bare_name, int rounds, Ours&& ours, Bare&& bare,
                   Theirs&& theirs) {
    std::vector<double> ours_ratios, bare_ratios;
    for (int round = 0; round < rounds; ++round) {
      double ours_seconds = 0, bare_seconds = 0, rival_seconds = 0;
      for (int i = 0; i < 3; ++i) {
        switch ((round + i) % 3) {
          case 0: ours_seconds = ours(); break;
          case 1: bare_seconds = bare(); break;
          default: rival_seconds = theirs();
        }
      }
      ours_ratios.push_back(rival_seconds / ours_seconds);
      if (bare_seconds > 0) bare_ratios.push_back(rival_seconds / bare_seconds);
    }
    PrintRatios(name, goal, std::move(ours_ratios));
    if (!bare_ratios.empty()) {
      PrintRatios(bare_name, "none", std::move(bare_ratios));
    } else {
      std::printf("stores: no direct I/O or no io_uring here, %s left out\n", bare_name);
    }
  }

  // As many bytes into a new file, eight pieces at a time.
  double SecondsOfBarePut() {
    const std::string path = folder_.path() + "/bare";
    const uint64_t pieces = (work_.count * work_.value_bytes + kBarePutBytes - 1) / kBarePutBytes;
    double seconds = 0;
    {
      RawFile file(path, pieces, kBarePutBytes);
      seconds = SecondsOf([&] { file.Write(); });
    }
    files::remove(path);
    return seconds;
  }

  Rival& Best(const Rivals& rivals, double (Place::*seconds)()) {
    Rival* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& rival : rivals) {
      Place place(folder_, *rival, work_);
      place.SecondsToPut();
      for (int i = 0; i < kTries; ++i) {
        const double taken = (place.*seconds)();
        if (taken >= least) continue;
        least = taken;
        best = rival.get();
      }
    }
    return *best;
  }

  Work work_;
  const char* const only_;
  Folder folder_;
  std::unique_ptr<Rival> ours_ = kvstrata::benchmarks::MakeOurs();
  Place ours_place_{folder_, *ours_, work_};
  std::unique_ptr<Rival> bare_ = kvstrata::benchmarks::MakeBare(folder_.path());
  std::optional<Place> bare_place_;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256;
  if (mib == 0) Fail("usage: stores_benchmark [MIB [FAMILY]]");
  Contest contest((mib << 20) / kValueBytes, argc > 2 ? argv[2] : "");
  contest.Against("RocksDB",
                  {"stores.durable_put_vs_rocksdb_256k", ">=3.0", "stores.bare_put_1m_vs_rocksdb",
                   "stores.cold_get_vs_rocksdb_256k", ">=2.0", "stores.bare_get_vs_rocksdb_256k"},
                  kvstrata::benchmarks::MakeRocksDb());
  contest.Against("LMDB",
                  {"stores.durable_put_vs_lmdb_256k", ">=3.0", "stores.bare_put_1m_vs_lmdb",
                   "stores.cold_get_vs_lmdb_256k", ">=2.0", "stores.bare_get_vs_lmdb_256k"},
                  kvstrata::benchmarks::MakeLmdb());
  contest.Against("a file for each value",
                  {"stores.durable_put_vs_files_256k", ">=3.0", "stores.bare_put_1m_vs_files",
                   "stores.cold_get_vs_buffered_files_256k", ">=1.5", "stores.bare_get_vs_buffered_files_256k"},
                  kvstrata::benchmarks::MakeBufferedFiles());
  contest.Against("a file for each value, direct",
                  {"stores.durable_put_vs_direct_files_256k", ">=3.0", "stores.bare_put_1m_vs_direct_files",
                   "stores.cold_get_vs_direct_files_8_threads_256k", ">=1.0", "stores.bare_get_vs_direct_files_256k"},
                  kvstrata::benchmarks::MakeDirectFiles());
  return 0;
}
