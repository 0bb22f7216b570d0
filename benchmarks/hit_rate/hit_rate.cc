// SPDX-License-Identifier: Apache-2.0
// Which share of the requested blocks a store of limited size hits, by eviction policy and admission, on traces of real
// use; and how much is written for it. README.md beside the traces says where they come from; without them this
// program says so and ends well.
//
//   hit_rate_benchmark [--json]     KVSTRATA_TRACES: the folder of the traces, else ../shared/traces
//
// Nothing here is timed: the counts are the same on every machine. Ends with 1 where LRU misses its reference by more
// than 0.01, since then the policies were not compared on the same footing.
//
// Thread rule: one thread.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "benchmarks/hit_rate/replay.h"

namespace {

using kvstrata::admission;
using kvstrata::eviction_policy;
using kvstrata::hit_rate::Counts;
using kvstrata::hit_rate::DistinctBlocks;
using kvstrata::hit_rate::Replay;
using kvstrata::hit_rate::Request;
using kvstrata::hit_rate::Setting;

constexpr int kShares[] = {1, 2, 5, 10, 20, 50};  // percent of the distinct blocks
constexpr size_t kShareCount = std::size(kShares);

struct Trace {
  const char* name;
  const char* file;
  // Leaf-first LRU, measured by another program (the README.md of the traces).
  double lru[kShareCount];
};

constexpr Trace kTraces[] = {
    {"conversation", "mooncake_conversation.jsonl", {.0525, .0793, .1958, .2789, .3453, .3631}},
    {"synthetic", "mooncake_synthetic.jsonl", {.0381, .0778, .1566, .2623, .3931, .5888}},
};

struct Way {
  const char* name;
  eviction_policy policy;
  admission admit;
};

constexpr Way kWays[] = {
    {"lru", eviction_policy::lru, admission::always},
    {"frequency", eviction_policy::frequency, admission::always},
    {"lru_second_sight", eviction_policy::lru, admission::second_sight},
    {"frequency_second_sight", eviction_policy::frequency, admission::second_sight},
};

// One request a line: ..."hash_ids": [1, 2, 3]...
std::vector<Request> ReadTrace(const std::string& path) {
  std::vector<Request> trace;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find("\"hash_ids\"");
    const size_t open = begin == std::string::npos ? begin : line.find('[', begin);
    if (open == std::string::npos) continue;
    Request request;
    const char* at = line.c_str() + open + 1;
    for (char* end = nullptr;; at = end + std::strspn(end, ", ")) {
      const long id = std::strtol(at, &end, 10);
      if (end == at) break;
      request.push_back(static_cast<std::int32_t>(id));
    }
    if (!request.empty()) trace.push_back(std::move(request));
  }
  return trace;
}

// Prints what the other policy gains over LRU at the same admission, and what admission does to LRU.
void PrintGains(const Trace& trace, const std::vector<std::vector<Counts>>& counts) {
  for (size_t way = 1; way < std::size(kWays); way += 2) {
    for (size_t s = 0; s < kShareCount; ++s) {
      std::printf("ratio hit_rate_%s_%s_%d %.4f goal >=1.0 over %s\n", kWays[way].name, trace.name, kShares[s],
                  counts[way][s].hit_rate() / counts[way - 1][s].hit_rate(), kWays[way - 1].name);
    }
  }
  for (size_t s = 0; s < kShareCount; ++s) {
    std::printf("ratio hit_rate_second_sight_%s_%d %.4f goal >=1.0 over lru\n", trace.name, kShares[s],
                counts[2][s].hit_rate() / counts[0][s].hit_rate());
    std::printf("ratio bytes_written_second_sight_%s_%d %.4f goal <=0.5 over lru\n", trace.name, kShares[s],
                counts[2][s].stored_share() / counts[0][s].stored_share());
  }
}

// What it costs that records hold more than one block: hits, and bytes that are evicted but not to be had.
bool PrintRuns(const Trace& trace, const std::vector<Request>& requests, const Way& way, const Counts* apart) {
  const std::uint64_t distinct = DistinctBlocks(requests);
  for (size_t s = 0; s < kShareCount; ++s) {
    Setting setting{distinct * static_cast<std::uint64_t>(kShares[s]) / 100, way.policy, way.admit};
    setting.runs = true;
    const Counts runs = Replay(requests, setting);
    if (!runs.fault.empty()) {
      std::fprintf(stderr, "%s, %s, runs, %d %%: %s\n", trace.name, way.name, kShares[s], runs.fault.c_str());
      return false;
    }
    std::printf("ratio hit_rate_runs_%s_%s_%d %.4f goal >=0.98 over blocks apart\n", way.name, trace.name, kShares[s],
                runs.hit_rate() / apart[s].hit_rate());
    std::printf("ratio unfreed_share_%s_%s_%d %.4f goal <=0.05 over capacity\n", way.name, trace.name, kShares[s],
                runs.unfreed_share);
  }
  return true;
}

void PrintTable(const Trace& trace, const std::vector<std::vector<Counts>>& counts) {
  std::printf("%-24s %5s", trace.name, "");
  for (const int share : kShares) std::printf(" %6d%%", share);
  std::printf("\n%-24s %5s", "lru, reference", "hit");
  for (const double rate : trace.lru) std::printf(" %.4f ", rate);
  std::printf("\n");
  for (size_t way = 0; way < std::size(kWays); ++way) {
    std::printf("%-24s %5s", kWays[way].name, "hit");
    for (const Counts& one : counts[way]) std::printf(" %.4f ", one.hit_rate());
    std::printf("\n%-24s %5s", "", "put");
    for (const Counts& one : counts[way]) std::printf(" %.4f ", one.stored_share());
    std::printf("\n");
  }
}

void PrintJson(const Trace& trace, const std::vector<std::vector<Counts>>& counts) {
  for (size_t way = 0; way < std::size(kWays); ++way) {
    for (size_t s = 0; s < kShareCount; ++s) {
      const Counts& one = counts[way][s];
      std::printf(
          "{\"trace\": \"%s\", \"policy\": \"%s\", \"share_percent\": %d, \"requested_blocks\": %llu, "
          "\"hit_blocks\": %llu, \"stored_blocks\": %llu, \"dropped_blocks\": %llu}\n",
          trace.name, kWays[way].name, kShares[s], static_cast<unsigned long long>(one.requested_blocks),
          static_cast<unsigned long long>(one.hit_blocks), static_cast<unsigned long long>(one.stored_blocks),
          static_cast<unsigned long long>(one.dropped_blocks));
    }
  }
}

// False when LRU is not what it should be, or a replay failed.
bool Run(const Trace& trace, const std::vector<Request>& requests, bool json) {
  const std::uint64_t distinct = DistinctBlocks(requests);
  std::vector<std::vector<Counts>> counts;
  bool right = true;
  for (const Way& way : kWays) {
    counts.emplace_back();
    for (const int share : kShares) {
      const Setting setting{distinct * static_cast<std::uint64_t>(share) / 100, way.policy, way.admit};
      counts.back().push_back(Replay(requests, setting));
      const std::string& fault = counts.back().back().fault;
      if (!fault.empty()) std::fprintf(stderr, "%s, %s, %d %%: %s\n", trace.name, way.name, share, fault.c_str());
      right = right && fault.empty();
    }
  }
  for (size_t s = 0; s < kShareCount; ++s) {
    if (std::abs(counts[0][s].hit_rate() - trace.lru[s]) <= 0.01) continue;
    std::fprintf(stderr, "%s, lru, %d %%: %.4f, but the reference is %.4f\n", trace.name, kShares[s],
                 counts[0][s].hit_rate(), trace.lru[s]);
    right = false;
  }
  json ? PrintJson(trace, counts) : PrintTable(trace, counts);
  if (!json && right) {
    PrintGains(trace, counts);
    for (size_t way = 0; way < 2; ++way) right = right && PrintRuns(trace, requests, kWays[way], counts[way].data());
  }
  std::fflush(stdout);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  const char* given = std::getenv("KVSTRATA_TRACES");
  const std::string folder = given != nullptr ? given : "../shared/traces";
  bool right = true;
  for (const Trace& trace : kTraces) {
    const std::vector<Request> requests = ReadTrace(folder + "/" + trace.file);
    if (requests.empty()) {
      std::fprintf(stderr, "hit_rate: no %s in %s (KVSTRATA_TRACES names the folder): skipped\n", trace.file,
                   folder.c_str());
      continue;
    }
    right = Run(trace, requests, json) && right;
  }
  return right ? 0 : 1;
}
