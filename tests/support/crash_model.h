// SPDX-License-Identifier: Apache-2.0
// What the tests that stop a store at every call share: records that tell their version, what each key may hold after a
// crash, and a count of the points at which was stopped.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "lib/base/bytes.h"
#include "lib/base/random.h"

namespace kvstrata::test {

// Of a key without a record.
inline constexpr uint64_t kAbsent = 0;

// Long enough for several units and never the same twice, so that no byte of one record passes for another's.
inline std::string CrashPayload(uint64_t key, uint64_t version) {
  core::base::SeededRandom random(key * 1'000'003 + version);
  std::string payload(version % 7 == 0 ? 0 : random.Below(30'000), '\0');
  static_cast<void>(random.Fill(std::as_writable_bytes(std::span(payload))));
  return payload;
}

inline std::string CrashMeta(uint64_t key, uint64_t version) {
  return std::to_string(key) + " " + std::to_string(version);
}

// What each key may hold after a crash: what it held at the last Sync that succeeded, and all that came later.
class CrashModel {
 public:
  explicit CrashModel(uint64_t keys) : keys_(keys) {
    for (uint64_t key = 0; key < keys_; ++key) allowed_[key] = {kAbsent};
  }
  void Began(uint64_t key, uint64_t version) { allowed_[key].insert(version); }
  void Completed(uint64_t key, uint64_t version) { now_[key] = version; }
  void Synced() {
    for (uint64_t key = 0; key < keys_; ++key) allowed_[key] = {now_[key]};
  }
  // Takes what was found as the new truth.
  void Adopt(const std::map<uint64_t, uint64_t>& found) {
    now_.clear();
    for (const auto& [key, version] : found) now_[key] = version;
    Synced();
  }
  bool Allows(uint64_t key, uint64_t version) const { return allowed_.at(key).contains(version); }

 private:
  const uint64_t keys_;
  std::map<uint64_t, uint64_t> now_;
  std::map<uint64_t, std::set<uint64_t>> allowed_;
};

// AddressSanitizer makes these runs many times as long: there each seed stops at every other call, half of the seeds at
// the odd ones.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kCrashStep = 2;
#else
inline constexpr uint64_t kCrashStep = 1;
#endif

// At how many calls was stopped, by the kind of file that they were about.
class CrashPoints {
 public:
  void Count(const std::string& kind) { ++by_kind_[kind]; }
  uint64_t of(const std::string& kind) const {
    const auto found = by_kind_.find(kind);
    return found == by_kind_.end() ? 0 : found->second;
  }
  uint64_t all() const {
    uint64_t sum = 0;
    for (const auto& [kind, count] : by_kind_) sum += count;
    return sum;
  }
  void Print(const char* what) const {
    std::printf("%s: %llu points", what, static_cast<unsigned long long>(all()));
    for (const auto& [kind, count] : by_kind_) {
      std::printf(", %s %llu", kind.c_str(), static_cast<unsigned long long>(count));
    }
    std::printf("\n");
  }

 private:
  std::map<std::string, uint64_t> by_kind_;
};

}  // namespace kvstrata::test
