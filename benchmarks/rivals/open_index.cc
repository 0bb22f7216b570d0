// SPDX-License-Identifier: Apache-2.0
// Opening the engine over a million blocks, cold, against RocksDB and LMDB that keep the same keys and metas: they open
// and go through all, which is what an index is rebuilt from. Runs of one block, and of 64; and runs of 64, as long
// prompts are stored, against a rival that keeps each of the same blocks for itself, as it would without us
// (..._of_blocks). Beside each, one read of our checkpoint and a bare table of the same keys over the same rival: they
// make no table, so that is the least that can be reached. Without their libraries nothing is printed.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "benchmarks/ratio.h"
#include "benchmarks/storage/index_world.h"

#ifndef KVSTRATA_NO_LMDB
#include <lmdb.h>
#endif
#ifndef KVSTRATA_NO_ROCKSDB
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#endif

namespace {

using kvstrata::benchmarks::CoolAll;
using kvstrata::benchmarks::Fail;
using kvstrata::benchmarks::Folder;
using kvstrata::benchmarks::IndexWorld;

constexpr int kPairs = 11;

class Rival {
 public:
  using Put = std::function<void(std::string_view key, std::string_view meta)>;

  virtual ~Rival() = default;
  virtual std::string name() const = 0;
  // Of our time over theirs.
  virtual const char* goal() const = 0;
  // Makes the store in a folder that is there, durably. `each` calls what it is given with each record.
  virtual void Fill(const std::string& folder, const std::function<void(const Put& put)>& each) = 0;
  // How many records it has, of which every key and meta was within reach.
  virtual uint64_t OpenAndIterate(const std::string& folder) = 0;
};

#ifndef KVSTRATA_NO_ROCKSDB
// Uncompressed, as keys are digests; filled in one go and flushed to tables.
class RocksDb final : public Rival {
 public:
  std::string name() const override { return "rocksdb"; }
  const char* goal() const override { return "<=0.35"; }
  void Fill(const std::string& folder, const std::function<void(const Put& put)>& each) override {
    const std::unique_ptr<rocksdb::DB> store = Open(folder);
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    each([&](std::string_view key, std::string_view meta) {
      Must(store->Put(options, {key.data(), key.size()}, {meta.data(), meta.size()}));
    });
    Must(store->Flush(rocksdb::FlushOptions()));
    Must(store->Close());
  }
  uint64_t OpenAndIterate(const std::string& folder) override {
    const std::unique_ptr<rocksdb::DB> store = Open(folder);
    const std::unique_ptr<rocksdb::Iterator> at(store->NewIterator(rocksdb::ReadOptions()));
    uint64_t records = 0;
    for (at->SeekToFirst(); at->Valid(); at->Next()) records += at->key().size() == 32 && !at->value().empty() ? 1 : 0;
    Must(at->status());
    return records;
  }

 private:
  static void Must(const rocksdb::Status& status) {
    if (!status.ok()) Fail(status.ToString().c_str());
  }
  static std::unique_ptr<rocksdb::DB> Open(const std::string& folder) {
    rocksdb::BlockBasedTableOptions table;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = rocksdb::kNoCompression;
    options.write_buffer_size = size_t{256} << 20;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* store = nullptr;
    Must(rocksdb::DB::Open(options, folder, &store));
    return std::unique_ptr<rocksdb::DB>(store);
  }
};
#endif

#ifndef KVSTRATA_NO_LMDB
class Lmdb final : public Rival {
 public:
  std::string name() const override { return "lmdb"; }
  const char* goal() const override { return "<=0.60"; }
  void Fill(const std::string& folder, const std::function<void(const Put& put)>& each) override {
    MDB_env* const store = Open(folder);
    MDB_txn* transaction = nullptr;
    MDB_dbi table = 0;
    Must(mdb_txn_begin(store, nullptr, 0, &transaction));
    Must(mdb_dbi_open(transaction, nullptr, 0, &table));
    each([&](std::string_view key, std::string_view meta) {
      MDB_val name{key.size(), const_cast<char*>(key.data())};
      MDB_val value{meta.size(), const_cast<char*>(meta.data())};
      Must(mdb_put(transaction, table, &name, &value, 0));
    });
    Must(mdb_txn_commit(transaction));
    Must(mdb_env_sync(store, 1));
    mdb_env_close(store);
  }
  uint64_t OpenAndIterate(const std::string& folder) override {
    MDB_env* const store = Open(folder);
    MDB_txn* transaction = nullptr;
    MDB_dbi table = 0;
    MDB_cursor* cursor = nullptr;
    Must(mdb_txn_begin(store, nullptr, MDB_RDONLY, &transaction));
    Must(mdb_dbi_open(transaction, nullptr, 0, &table));
    Must(mdb_cursor_open(transaction, table, &cursor));
    uint64_t records = 0;
    MDB_val key{}, value{};
    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == MDB_SUCCESS) {
      // A byte of each, so that its pages are there.
      static_cast<void>(*(static_cast<const volatile char*>(value.mv_data) + value.mv_size - 1));
      records += key.mv_size == 32 ? 1 : 0;
    }
    mdb_cursor_close(cursor);
    mdb_txn_abort(transaction);
    mdb_env_close(store);
    return records;
  }

 private:
  static void Must(int result) {
    if (result != MDB_SUCCESS) Fail(mdb_strerror(result));
  }
  static MDB_env* Open(const std::string& folder) {
    MDB_env* store = nullptr;
    Must(mdb_env_create(&store));
    Must(mdb_env_set_mapsize(store, size_t{16} << 30));
    Must(mdb_env_open(store, folder.c_str(), MDB_NOSYNC, 0600));
    return store;
  }
};
#endif

// A rival that keeps a record for each run of `kept`; opened against each of `worlds`.
void PrintRival(const IndexWorld& kept, std::initializer_list<const IndexWorld*> worlds, Rival& rival) {
  const Folder folder;
  rival.Fill(folder.path(), [&](const auto& put) {
    for (uint64_t first = 0; first < kept.blocks(); first += kept.run()) {
      const auto entry = kept.EntryOf(first);
      put(kvstrata::core::base::AsText(entry.key), kvstrata::core::base::AsText(entry.meta));
    }
  });
  const auto theirs = [&] {
    CoolAll(folder.path());
    uint64_t listed = 0;
    const double seconds = kvstrata::benchmarks::SecondsOf([&] { listed = rival.OpenAndIterate(folder.path()); });
    if (listed != kept.blocks() / kept.run()) Fail("a rival has lost records");
    return seconds;
  };
  for (const IndexWorld* world : worlds) {
    const std::string runs = "open_of_runs_of_" + std::to_string(world->run());
    const std::string other = "_vs_" + rival.name() + (world == &kept ? "" : "_of_blocks");
    const auto print = [&](const char* what, const char* goal, const auto& ours) {
      kvstrata::benchmarks::PrintTimedPairs((runs + what + other).c_str(), goal, kPairs, ours, theirs, false);
    };
    print("_engine", rival.goal(), [&] { return world->EngineSeconds(false); });
    print("_bare", "none", [&] { return world->BareSeconds(); });
  }
}

void PrintAll(const IndexWorld& runs, const IndexWorld& blocks, Rival& rival) {
  PrintRival(runs, {&runs}, rival);
  PrintRival(blocks, {&blocks, &runs}, rival);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const IndexWorld runs(64), blocks(1);
#ifndef KVSTRATA_NO_ROCKSDB
  RocksDb rocksdb;
  PrintAll(runs, blocks, rocksdb);
#endif
#ifndef KVSTRATA_NO_LMDB
  Lmdb lmdb;
  PrintAll(runs, blocks, lmdb);
#endif
  return 0;
}
