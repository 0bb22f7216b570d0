// SPDX-License-Identifier: Apache-2.0
// The caller's storage of the conformance cases: records in memory, requests that can be held, calls that can fail.
//
// Thread rule: all members on any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kvstrata/kvstrata.hpp"

namespace kvstrata::conformance {

// What a case knows as a store: it outlives the caches on it.
class Store {
 public:
  struct Counts {
    std::uint64_t records, destroyed, held;
  };

  explicit Store(std::uint64_t capabilities) : capabilities_(capabilities) {}

  void Hold(bool puts);
  void LetGo();
  void Fail(const std::string& call, errc code);
  // Flips the lowest bit of the last byte of each payload of at least `bytes` bytes.
  void Damage(std::uint64_t bytes);
  void Wipe();
  // Exchanges the payloads of the last two records that were put.
  void Swap();
  Counts Look();

 private:
  friend class Table;
  struct Record {
    kvstrata_key key;
    std::vector<unsigned char> payload;
    std::vector<unsigned char> meta;
  };

  std::vector<Record>::iterator Find(const kvstrata_key& key);
  errc Failing(const std::string& call);
  void Run(const storage_request& request);
  errc Put(const storage_request& request, std::uint64_t* bytes);
  errc Get(const storage_request& request, std::uint64_t* bytes);

  const std::uint64_t capabilities_;
  std::mutex mutex_;
  std::vector<Record> records_;  // in order of putting
  std::vector<storage_request> held_;
  std::map<std::string, errc> failing_;
  bool hold_puts_ = false;
  bool hold_gets_ = false;
  std::uint64_t destroyed_ = 0;
};

// What a cache owns: for storage_adapter.
class Table {
 public:
  explicit Table(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table();

  // The cache has opened: from here on the end of this object is the library's destroy.
  void Opened() { opened_ = true; }

  std::uint64_t capabilities() const { return store_->capabilities_; }
  errc submit(const storage_request* requests, std::size_t count);
  errc stat(const kvstrata_key& key, bool& exists, std::uint64_t& payload_bytes);
  errc remove(const kvstrata_key& key);
  errc sync();
  errc list(std::uint64_t& cursor, storage_listing& into);

 private:
  std::shared_ptr<Store> store_;
  bool opened_ = false;
};

}  // namespace kvstrata::conformance
