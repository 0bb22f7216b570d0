// SPDX-License-Identifier: Apache-2.0
// storage_adapter: the table that it makes, called as the library calls it.
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvstrata/kvstrata.hpp"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::errc;

struct key_less {
  bool operator()(const kvstrata_key& a, const kvstrata_key& b) const {
    return std::memcmp(a.bytes, b.bytes, sizeof a.bytes) < 0;
  }
};

// A map in memory; `faulty` makes every call throw.
class map_storage : public kvstrata::synchronous_storage<map_storage> {
 public:
  explicit map_storage(int* destroyed) : destroyed_(destroyed) {}
  ~map_storage() { ++*destroyed_; }

  std::uint64_t capabilities() const { return KVSTRATA_STORAGE_DURABLE_SYNC; }
  errc put(const kvstrata::storage_request& request, std::int64_t&) {
    guard();
    record fresh;
    for (std::size_t i = 0; i < request.part_count(); ++i) append(fresh.payload, request.part(i));
    append(fresh.meta, request.meta());
    records_[request.key()] = std::move(fresh);
    return errc::ok;
  }
  errc get(const kvstrata::storage_request& request, std::int64_t& native_code) {
    guard();
    const auto found = records_.find(request.key());
    if (found == records_.end()) {
      native_code = 2;
      return errc::not_found;
    }
    const kvstrata::mutable_byte_view to = request.destination();
    if (request.offset() + to.size() > found->second.payload.size()) return errc::corrupt;
    std::memcpy(to.data(), found->second.payload.data() + request.offset(), to.size());
    return errc::ok;
  }
  errc stat(const kvstrata_key& key, bool& exists, std::uint64_t& payload_bytes) {
    guard();
    const auto found = records_.find(key);
    exists = found != records_.end();
    payload_bytes = exists ? found->second.payload.size() : 0;
    return errc::ok;
  }
  errc remove(const kvstrata_key& key) {
    guard();
    records_.erase(key);
    return errc::ok;
  }
  errc sync() {
    guard();
    return errc::ok;
  }
  errc list(std::uint64_t& cursor, kvstrata::storage_listing& into) {
    guard();
    std::uint64_t index = 0;
    for (const auto& [key, value] : records_) {
      if (index++ < cursor) continue;
      if (!into.add(key, value.payload.size(), value.payload.size() + 64, value.meta)) {
        cursor = index - 1;
        return errc::ok;
      }
    }
    cursor = 0;
    return errc::ok;
  }

  bool faulty = false;

 private:
  struct record {
    std::string payload, meta;
  };
  static void append(std::string& to, kvstrata::byte_view from) {
    to.append(reinterpret_cast<const char*>(from.data()), from.size());
  }
  void guard() const {
    if (faulty) throw std::runtime_error("refused");
  }
  std::map<kvstrata_key, record, key_less> records_;
  int* destroyed_;
};

struct completion {
  int calls = 0;
  kvstrata_status status = -1;
  std::uint64_t bytes = 0;
  std::int64_t native_code = 0;
};
void complete(void* user, kvstrata_status status, std::uint64_t bytes, std::int64_t native_code) {
  auto& seen = *static_cast<completion*>(user);
  ++seen.calls;
  seen.status = status;
  seen.bytes = bytes;
  seen.native_code = native_code;
}

kvstrata_key key_of(unsigned char first) {
  kvstrata_key key{};
  key.bytes[0] = first;
  return key;
}

kvstrata_storage_request put_of(const kvstrata_key& key, const kvstrata_iovec* parts, std::uint64_t count,
                                completion* seen) {
  kvstrata_storage_request out{};
  out.struct_size = sizeof out;
  out.kind = KVSTRATA_STORAGE_PUT;
  out.key = key;
  out.parts = parts;
  out.part_count = count;
  out.meta = "meta";
  out.meta_size = 4;
  out.complete = complete;
  out.user = seen;
  return out;
}

kvstrata_storage_request get_of(const kvstrata_key& key, std::uint64_t offset, void* to, std::uint64_t size,
                                completion* seen) {
  kvstrata_storage_request out{};
  out.struct_size = sizeof out;
  out.kind = KVSTRATA_STORAGE_GET;
  out.key = key;
  out.offset = offset;
  out.destination = to;
  out.size = size;
  out.complete = complete;
  out.user = seen;
  return out;
}

TEST_CASE("a C++ storage answers through its table") {
  int destroyed = 0;
  kvstrata::storage_adapter<map_storage> adapter(std::make_unique<map_storage>(&destroyed));
  const kvstrata_storage& table = *adapter.table();
  CHECK(table.abi_version == KVSTRATA_ABI_VERSION);
  CHECK(table.capabilities == KVSTRATA_STORAGE_DURABLE_SYNC);

  const kvstrata_iovec parts[] = {{"hello ", 6}, {"world", 5}};
  completion puts[3];
  kvstrata_storage_request requests[3];
  for (unsigned i = 0; i < 3; ++i) requests[i] = put_of(key_of(static_cast<unsigned char>(i)), parts, 2, &puts[i]);
  REQUIRE(table.submit(table.ctx, requests, 3, sizeof requests[0]) == KVSTRATA_OK);
  for (const completion& one : puts) {
    CHECK(one.calls == 1);
    CHECK(one.status == KVSTRATA_OK);
    CHECK(one.bytes == 11);
  }

  char text[5] = {};
  completion got, absent;
  const kvstrata_storage_request gets[] = {get_of(key_of(1), 6, text, 5, &got), get_of(key_of(9), 0, text, 5, &absent)};
  REQUIRE(table.submit(table.ctx, gets, 2, sizeof gets[0]) == KVSTRATA_OK);
  CHECK(got.status == KVSTRATA_OK);
  CHECK(std::string(text, 5) == "world");
  CHECK(absent.status == KVSTRATA_E_NOT_FOUND);
  CHECK(absent.native_code == 2);
  CHECK(absent.bytes == 0);

  std::int32_t exists = -1;
  std::uint64_t bytes = 0;
  const kvstrata_key second = key_of(2);
  REQUIRE(table.stat(table.ctx, &second, &exists, &bytes) == KVSTRATA_OK);
  CHECK(exists == 1);
  CHECK(bytes == 11);
  REQUIRE(table.remove(table.ctx, &second) == KVSTRATA_OK);

  // Two records are left; a page of one entry needs two calls and a third to learn of the end, or ends at the second.
  std::uint64_t cursor = 0, listed = 0, count = 0;
  auto entry = std::make_unique<kvstrata_storage_entry>();
  entry->struct_size = sizeof *entry;
  do {
    REQUIRE(table.list(table.ctx, &cursor, entry.get(), 1, sizeof *entry, &count) == KVSTRATA_OK);
    listed += count;
    if (count == 1) CHECK(std::string(reinterpret_cast<char*>(entry->meta), entry->meta_size) == "meta");
  } while (cursor != 0);
  CHECK(listed == 2);
  CHECK(destroyed == 0);
}

TEST_CASE("an exception becomes KVSTRATA_E_CALLBACK and outputs stay untouched") {
  int destroyed = 0;
  kvstrata::storage_adapter<map_storage> adapter(std::make_unique<map_storage>(&destroyed));
  adapter.get()->faulty = true;
  const kvstrata_storage& table = *adapter.table();
  const kvstrata_iovec part = {"x", 1};
  completion seen;
  const kvstrata_storage_request request = put_of(key_of(1), &part, 1, &seen);
  CHECK(table.submit(table.ctx, &request, 1, sizeof request) == KVSTRATA_OK);
  CHECK(seen.calls == 1);
  CHECK(seen.status == KVSTRATA_E_CALLBACK);
  std::int32_t exists = 77;
  std::uint64_t number = 78;
  const kvstrata_key key = key_of(1);
  CHECK(table.stat(table.ctx, &key, &exists, &number) == KVSTRATA_E_CALLBACK);
  CHECK(exists == 77);
  CHECK(number == 78);
  CHECK(table.remove(table.ctx, &key) == KVSTRATA_E_CALLBACK);
  CHECK(table.sync(table.ctx) == KVSTRATA_E_CALLBACK);
  std::uint64_t cursor = 0;
  CHECK(table.list(table.ctx, &cursor, nullptr, 0, sizeof(kvstrata_storage_entry), &number) == KVSTRATA_E_CALLBACK);
  CHECK(number == 78);
}

TEST_CASE("the storage is destroyed exactly once, by whoever owns it") {
  int destroyed = 0;
  { kvstrata::storage_adapter<map_storage> kept(std::make_unique<map_storage>(&destroyed)); }
  CHECK(destroyed == 1);
  kvstrata_storage table{};
  {
    kvstrata::storage_adapter<map_storage> given(std::make_unique<map_storage>(&destroyed));
    table = *given.table();
    given.given_away();
  }
  CHECK(destroyed == 1);
  table.destroy(table.ctx);
  CHECK(destroyed == 2);
}

}  // namespace
