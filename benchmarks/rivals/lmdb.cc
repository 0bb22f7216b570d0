// SPDX-License-Identifier: Apache-2.0
// LMDB: 32 values in a transaction, one flush at the end; gets by 1, 8 or 24 readers, with the system's read-ahead
// (without it LMDB reads its values page by page).
#include <lmdb.h>

#include <cstring>

#include "benchmarks/rivals/rival.h"
#include "benchmarks/storage/drive.h"

namespace kvstrata::benchmarks {
namespace {

constexpr uint64_t kBatch = 32;

void Must(int result) {
  if (result != MDB_SUCCESS) Fail(mdb_strerror(result));
}

MDB_val KeyValue(RivalKey* key) { return {kKeyBytes, key->bytes}; }

class Lmdb final : public Rival {
 public:
  Lmdb(bool write_map, size_t readers) : write_map_(write_map), readers_(readers) {}
  std::string name() const override {
    return std::string("LMDB") + (write_map_ ? " with a writable map" : "") + ", " + std::to_string(readers_) +
           " readers";
  }
  void Open(const std::string& folder) override {
    Must(mdb_env_create(&store_));
    Must(mdb_env_set_mapsize(store_, size_t{16} << 30));
    const unsigned map = write_map_ ? MDB_WRITEMAP | MDB_MAPASYNC : 0;
    Must(mdb_env_open(store_, folder.c_str(), MDB_NOSYNC | MDB_NOTLS | map, 0600));
  }
  void Close() override { mdb_env_close(store_); }

  void PutAll(const Work& work) override {
    for (uint64_t i = 0; i < work.count;) {
      MDB_txn* transaction = nullptr;
      Must(mdb_txn_begin(store_, nullptr, 0, &transaction));
      MDB_dbi table = 0;
      Must(mdb_dbi_open(transaction, nullptr, 0, &table));
      for (uint64_t batch = 0; batch < kBatch && i < work.count; ++batch, ++i) {
        RivalKey key = RivalKeyOf(i);
        MDB_val name = KeyValue(&key);
        const core::base::ByteView bytes = work.ValueOf(i);
        MDB_val value{bytes.size(), const_cast<std::byte*>(bytes.data())};
        Must(mdb_put(transaction, table, &name, &value, 0));
      }
      Must(mdb_txn_commit(transaction));
    }
    Must(mdb_env_sync(store_, 1));
  }

  void GetAll(const Work& work) override {
    InThreads(work.count, readers_, work.value_bytes, [&](uint64_t i, std::byte* memory) {
      const uint64_t number = work.order[i];
      MDB_txn* transaction = nullptr;
      Must(mdb_txn_begin(store_, nullptr, MDB_RDONLY, &transaction));
      MDB_dbi table = 0;
      Must(mdb_dbi_open(transaction, nullptr, 0, &table));
      RivalKey key = RivalKeyOf(number);
      MDB_val name = KeyValue(&key);
      MDB_val value{};
      Must(mdb_get(transaction, table, &name, &value));
      if (value.mv_size != work.value_bytes) Fail("a value has another size");
      std::memcpy(memory, value.mv_data, value.mv_size);
      mdb_txn_abort(transaction);
      work.Check(number, memory);
    });
  }

 private:
  const bool write_map_;
  const size_t readers_;
  MDB_env* store_ = nullptr;
};

}  // namespace

Rivals MakeLmdb() {
  Rivals rivals;
  rivals.push_back(std::make_unique<Lmdb>(false, 1));
  rivals.push_back(std::make_unique<Lmdb>(false, 8));
  rivals.push_back(std::make_unique<Lmdb>(false, 24));
  rivals.push_back(std::make_unique<Lmdb>(true, 1));
  return rivals;
}

}  // namespace kvstrata::benchmarks
