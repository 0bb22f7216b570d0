// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cpp/store.h"

#include <algorithm>
#include <cstring>

namespace kvstrata::conformance {

std::vector<Store::Record>::iterator Store::Find(const kvstrata_key& key) {
  return std::find_if(records_.begin(), records_.end(),
                      [&](const Record& one) { return std::memcmp(&one.key, &key, sizeof key) == 0; });
}

errc Store::Failing(const std::string& call) {
  const auto found = failing_.find(call);
  return found != failing_.end() ? found->second : errc::ok;
}

void Store::Hold(bool puts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  (puts ? hold_puts_ : hold_gets_) = true;
}

void Store::LetGo() {
  std::vector<storage_request> held;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    held.swap(held_);
    hold_puts_ = hold_gets_ = false;
  }
  for (const storage_request& request : held) Run(request);
}

void Store::Fail(const std::string& call, errc code) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failing_[call] = code;
}

void Store::Damage(std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Record& one : records_) {
    if (!one.payload.empty() && one.payload.size() >= bytes) one.payload.back() ^= 1;
  }
}

void Store::Wipe() {
  const std::lock_guard<std::mutex> lock(mutex_);
  records_.clear();
}

void Store::Swap() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (records_.size() >= 2) std::swap(records_.back().payload, records_[records_.size() - 2].payload);
}

Store::Counts Store::Look() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {records_.size(), destroyed_, held_.size()};
}

errc Store::Put(const storage_request& request, std::uint64_t* bytes) {
  if (const errc failing = Failing("put"); failing != errc::ok) return failing;
  Record fresh{request.key(), {}, {}};
  for (std::size_t i = 0; i < request.part_count(); ++i) {
    const byte_view part = request.part(i);
    fresh.payload.insert(fresh.payload.end(), part.data(), part.data() + part.size());
  }
  fresh.meta.assign(request.meta().data(), request.meta().data() + request.meta().size());
  *bytes = fresh.payload.size();
  if (const auto old = Find(request.key()); old != records_.end()) records_.erase(old);
  records_.push_back(std::move(fresh));
  return errc::ok;
}

errc Store::Get(const storage_request& request, std::uint64_t* bytes) {
  if (const errc failing = Failing("get"); failing != errc::ok) return failing;
  const auto found = Find(request.key());
  const mutable_byte_view to = request.destination();
  if (found == records_.end()) return errc::not_found;
  if (request.offset() > found->payload.size() || to.size() > found->payload.size() - request.offset()) {
    return errc::corrupt;
  }
  if (to.size() != 0) std::memcpy(to.data(), found->payload.data() + request.offset(), to.size());
  *bytes = to.size();
  return errc::ok;
}

void Store::Run(const storage_request& request) {
  std::uint64_t bytes = 0;
  errc status = errc::ok;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    status = request.is_put() ? Put(request, &bytes) : Get(request, &bytes);
  }
  request.complete(status, bytes);
}

Table::~Table() {
  const std::lock_guard<std::mutex> lock(store_->mutex_);
  store_->destroyed_ += opened_ ? 1 : 0;
}

errc Table::submit(const storage_request* requests, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    {
      const std::lock_guard<std::mutex> lock(store_->mutex_);
      if (requests[i].is_put() ? store_->hold_puts_ : store_->hold_gets_) {
        store_->held_.push_back(requests[i]);
        continue;
      }
    }
    store_->Run(requests[i]);
  }
  return errc::ok;
}

errc Table::stat(const kvstrata_key& key, bool& exists, std::uint64_t& payload_bytes) {
  const std::lock_guard<std::mutex> lock(store_->mutex_);
  const auto found = store_->Find(key);
  exists = found != store_->records_.end();
  payload_bytes = exists ? found->payload.size() : 0;
  return store_->Failing("stat");
}

errc Table::remove(const kvstrata_key& key) {
  const std::lock_guard<std::mutex> lock(store_->mutex_);
  if (const errc failing = store_->Failing("remove"); failing != errc::ok) return failing;
  if (const auto found = store_->Find(key); found != store_->records_.end()) store_->records_.erase(found);
  return errc::ok;
}

errc Table::sync() {
  const std::lock_guard<std::mutex> lock(store_->mutex_);
  return store_->Failing("sync");
}

errc Table::list(std::uint64_t& cursor, storage_listing& into) {
  const std::lock_guard<std::mutex> lock(store_->mutex_);
  if (const errc failing = store_->Failing("list"); failing != errc::ok) return failing;
  for (; cursor < store_->records_.size() && !into.full(); ++cursor) {
    const Store::Record& one = store_->records_[cursor];
    into.add(one.key, one.payload.size(), one.payload.size() + one.meta.size(), one.meta);
  }
  if (cursor == store_->records_.size()) cursor = 0;
  return errc::ok;
}

}  // namespace kvstrata::conformance
