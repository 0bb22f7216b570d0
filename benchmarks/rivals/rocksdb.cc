// SPDX-License-Identifier: Apache-2.0
// RocksDB without compression: values in tables, or in blob files; with its log, or without it and a flush at the end.
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

#include <cstring>

#include "benchmarks/rivals/rival.h"
#include "benchmarks/storage/drive.h"

namespace kvstrata::benchmarks {
namespace {

struct Setting {
  const char* name;
  bool blobs;
  bool log;
  size_t threads;
};

void Must(const rocksdb::Status& status) {
  if (!status.ok()) Fail(status.ToString().c_str());
}

rocksdb::Slice SliceOf(core::base::ByteView bytes) {
  return rocksdb::Slice(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class RocksDb final : public Rival {
 public:
  explicit RocksDb(const Setting& setting) : setting_(setting) {}
  std::string name() const override { return setting_.name; }
  void Open(const std::string& folder) override {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = rocksdb::kNoCompression;
    options.write_buffer_size = 256u << 20;
    options.max_background_jobs = 2;
    options.enable_blob_files = setting_.blobs;
    options.min_blob_size = 4096;
    options.blob_file_size = 512u << 20;
    rocksdb::BlockBasedTableOptions table;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* store = nullptr;
    Must(rocksdb::DB::Open(options, folder + "/rocksdb", &store));
    store_.reset(store);
  }
  void Close() override { store_.reset(); }

  void PutAll(const Work& work) override {
    rocksdb::WriteOptions options;
    options.disableWAL = !setting_.log;
    InThreads(work.count, setting_.threads, work.value_bytes, [&](uint64_t i, std::byte*) {
      const RivalKey key = RivalKeyOf(i);
      Must(store_->Put(options, rocksdb::Slice(key.bytes, kKeyBytes), SliceOf(work.ValueOf(i))));
    });
    // With its log the values are durable once that is.
    Must(setting_.log ? store_->SyncWAL() : store_->Flush(rocksdb::FlushOptions()));
  }

  void GetAll(const Work& work) override {
    InThreads(work.count, setting_.threads, work.value_bytes, [&](uint64_t i, std::byte* memory) {
      const uint64_t number = work.order[i];
      const RivalKey key = RivalKeyOf(number);
      rocksdb::PinnableSlice value;
      Must(store_->Get(rocksdb::ReadOptions(), store_->DefaultColumnFamily(), rocksdb::Slice(key.bytes, kKeyBytes),
                       &value));
      if (value.size() != work.value_bytes) Fail("a value has another size");
      std::memcpy(memory, value.data(), value.size());
      work.Check(number, memory);
    });
  }

 private:
  const Setting setting_;
  std::unique_ptr<rocksdb::DB> store_;
};

}  // namespace

Rivals MakeRocksDb() {
  Rivals rivals;
  for (const Setting& setting : {Setting{"RocksDB with its log, 1 thread", false, true, 1},
                                 Setting{"RocksDB without log, 8 threads", false, false, 8},
                                 Setting{"RocksDB without log, 24 threads", false, false, 24},
                                 Setting{"RocksDB blobs without log, 1 thread", true, false, 1},
                                 Setting{"RocksDB blobs without log, 2 threads", true, false, 2},
                                 Setting{"RocksDB blobs without log, 8 threads", true, false, 8},
                                 Setting{"RocksDB blobs without log, 24 threads", true, false, 24}}) {
    rivals.push_back(std::make_unique<RocksDb>(setting));
  }
  return rivals;
}

}  // namespace kvstrata::benchmarks
