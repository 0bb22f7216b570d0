// SPDX-License-Identifier: Apache-2.0
// kvstrata/storage.hpp - storage_adapter: a C++ class becomes the cache's storage. C++17, header-only.
//
// The class needs these members; all are called from any thread, several at once, and may throw: an exception becomes
// KVSTRATA_E_CALLBACK.
//
//   std::uint64_t capabilities() const;                  KVSTRATA_STORAGE_DURABLE_SYNC | KVSTRATA_STORAGE_PERSISTENT
//   errc submit(const storage_request* requests, std::size_t count);
//                                                        takes all (errc::ok) or none; each one taken is completed
//                                                        exactly once, on any thread, also inside submit
//   errc stat(const kvstrata_key& key, bool& exists, std::uint64_t& payload_bytes);
//   errc remove(const kvstrata_key& key);                an absent key is errc::ok
//   errc sync();
//   errc list(std::uint64_t& cursor, storage_listing& into);   cursor 0 at first, 0 again = the end
//
// A storage without asynchrony derives from synchronous_storage and offers put and get instead of submit.
// The rules for what a put and a get must do are in c_api.h, section 4.
//
// Thread rule: an adapter belongs to one thread until a cache has taken it over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kvstrata/c_api.h"
#include "kvstrata/cache.hpp"
#include "kvstrata/result.hpp"
#include "kvstrata/views.hpp"

namespace kvstrata {
inline namespace v1 {

/// One put or ranged get; a copyable value. What it points to stays valid until it is completed.
class storage_request {
 public:
  storage_request() noexcept = default;
  explicit storage_request(const kvstrata_storage_request& c) noexcept {
    std::memcpy(&c_, &c, c.struct_size < sizeof c_ ? c.struct_size : sizeof c_);
  }

  bool is_put() const noexcept { return c_.kind == KVSTRATA_STORAGE_PUT; }
  bool is_get() const noexcept { return c_.kind == KVSTRATA_STORAGE_GET; }
  const kvstrata_key& key() const noexcept { return c_.key; }
  /// get: the first payload byte wanted, and where the bytes go. A shorter record completes with errc::corrupt.
  std::uint64_t offset() const noexcept { return c_.offset; }
  mutable_byte_view destination() const noexcept { return {c_.destination, static_cast<std::size_t>(c_.size)}; }
  /// put: the payload is these parts, concatenated.
  std::size_t part_count() const noexcept { return static_cast<std::size_t>(c_.part_count); }
  byte_view part(std::size_t index) const noexcept {
    return {c_.parts[index].data, static_cast<std::size_t>(c_.parts[index].size)};
  }
  std::uint64_t payload_bytes() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < part_count(); ++i) sum += c_.parts[i].size;
    return sum;
  }
  /// put: at most 4096 bytes that `list` gives back.
  byte_view meta() const noexcept { return {c_.meta, static_cast<std::size_t>(c_.meta_size)}; }

  /// Exactly once. `bytes` is what was moved; native_code an errno where there is one.
  void complete(errc status, std::uint64_t bytes, std::int64_t native_code = 0) const noexcept {
    c_.complete(c_.user, static_cast<kvstrata_status>(status), bytes, native_code);
  }

 private:
  kvstrata_storage_request c_{};
};

/// Where `list` puts its entries.
class storage_listing {
 public:
  storage_listing(kvstrata_storage_entry* entries, std::uint64_t capacity, std::uint64_t stride) noexcept
      : entries_(reinterpret_cast<unsigned char*>(entries)), capacity_(capacity), stride_(stride) {}
  bool full() const noexcept { return count_ == capacity_; }
  std::uint64_t size() const noexcept { return count_; }
  /// False, and nothing is added, when it is full. stored_bytes is what the record costs of the budget. Meta beyond
  /// 4096 bytes is cut (no put carries more).
  bool add(const kvstrata_key& key, std::uint64_t payload_bytes, std::uint64_t stored_bytes, byte_view meta) noexcept {
    if (full()) return false;
    auto* entry = reinterpret_cast<kvstrata_storage_entry*>(entries_ + count_ * stride_);
    const std::size_t size = meta.size() < sizeof entry->meta ? meta.size() : sizeof entry->meta;
    entry->meta_size = static_cast<std::uint32_t>(size);
    entry->key = key;
    entry->payload_bytes = payload_bytes;
    entry->stored_bytes = stored_bytes;
    if (size != 0) std::memcpy(entry->meta, meta.data(), size);
    ++count_;
    return true;
  }

 private:
  unsigned char* entries_;
  std::uint64_t capacity_;
  std::uint64_t stride_;
  std::uint64_t count_ = 0;
};

/// Base (curiously recurring) for storages that finish each request at once. Derived has
///   errc put(const storage_request& request, std::int64_t& native_code);
///   errc get(const storage_request& request, std::int64_t& native_code);
/// If one of them throws, its request completes with errc::callback; the others are not affected.
template <class Derived>
class synchronous_storage {
 public:
  errc submit(const storage_request* requests, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      const storage_request& one = requests[i];
      std::int64_t native_code = 0;
      const kvstrata_status status = detail::fenced([&] {
        Derived& self = static_cast<Derived&>(*this);
        return static_cast<kvstrata_status>(one.is_put() ? self.put(one, native_code) : self.get(one, native_code));
      });
      const std::uint64_t bytes = one.is_put() ? one.payload_bytes() : one.destination().size();
      one.complete(static_cast<errc>(status), status == KVSTRATA_OK ? bytes : 0, native_code);
    }
    return errc::ok;
  }

 protected:
  synchronous_storage() = default;
  ~synchronous_storage() = default;
};

/// Owns an Impl and its table until a cache takes both over: cache::open(options, adapter).
template <class Impl>
class storage_adapter {
 public:
  explicit storage_adapter(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {
    table_.struct_size = sizeof table_;
    table_.abi_version = KVSTRATA_ABI_VERSION;
    table_.ctx = impl_.get();
    table_.destroy = [](void* ctx) noexcept { delete static_cast<Impl*>(ctx); };
    table_.capabilities = impl_ != nullptr ? static_cast<const Impl&>(*impl_).capabilities() : 0;
    table_.submit = &submit;
    table_.stat = &stat;
    table_.remove = &remove;
    table_.sync = &sync;
    table_.list = &list;
  }

  /// The storage while this adapter owns it, else null.
  Impl* get() const noexcept { return impl_.get(); }
  /// The table, for cache_options::storage or for the C API. Valid while this object lives and is not moved.
  const kvstrata_storage* table() const noexcept { return &table_; }
  /// To be called when a cache has taken the storage over (cache::open does so itself).
  void given_away() noexcept { static_cast<void>(impl_.release()); }

 private:
  static Impl& self(void* ctx) noexcept { return *static_cast<Impl*>(ctx); }
  static kvstrata_status submit(void* ctx, const kvstrata_storage_request* requests, std::uint64_t count,
                                std::uint64_t stride) noexcept {
    return detail::fenced([&] {
      // Completions may begin before submit returns, so the requests are copied first.
      std::vector<storage_request> copies;
      copies.reserve(static_cast<std::size_t>(count));
      const auto* at = reinterpret_cast<const unsigned char*>(requests);
      for (std::uint64_t i = 0; i < count; ++i, at += stride) {
        copies.emplace_back(*reinterpret_cast<const kvstrata_storage_request*>(at));
      }
      return static_cast<kvstrata_status>(self(ctx).submit(copies.data(), copies.size()));
    });
  }
  static kvstrata_status stat(void* ctx, const kvstrata_key* key, std::int32_t* out_exists,
                              std::uint64_t* out_payload_bytes) noexcept {
    return detail::fenced([&] {
      bool exists = false;
      std::uint64_t bytes = 0;
      const errc status = self(ctx).stat(*key, exists, bytes);
      if (status == errc::ok) {
        *out_exists = exists ? 1 : 0;
        *out_payload_bytes = bytes;
      }
      return static_cast<kvstrata_status>(status);
    });
  }
  static kvstrata_status remove(void* ctx, const kvstrata_key* key) noexcept {
    return detail::fenced([&] { return static_cast<kvstrata_status>(self(ctx).remove(*key)); });
  }
  static kvstrata_status sync(void* ctx) noexcept {
    return detail::fenced([&] { return static_cast<kvstrata_status>(self(ctx).sync()); });
  }
  static kvstrata_status list(void* ctx, std::uint64_t* cursor, kvstrata_storage_entry* entries, std::uint64_t capacity,
                              std::uint64_t stride, std::uint64_t* out_count) noexcept {
    return detail::fenced([&] {
      storage_listing into(entries, capacity, stride);
      const errc status = self(ctx).list(*cursor, into);
      if (status == errc::ok) *out_count = into.size();
      return static_cast<kvstrata_status>(status);
    });
  }

  std::unique_ptr<Impl> impl_;
  kvstrata_storage table_{};
};

}  // namespace v1
}  // namespace kvstrata
