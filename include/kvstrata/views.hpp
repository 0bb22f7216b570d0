// SPDX-License-Identifier: Apache-2.0
// kvstrata/views.hpp - borrowed views: bytes, tokens, extra keys. C++17, header-only.
//
// A view owns nothing: what it shows must live as long as the call that it is passed to, unless that call says
// otherwise. The types are our own, so that they are the same in every language mode.
//
// Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kvstrata/c_api.h"

namespace kvstrata {
inline namespace v1 {

namespace detail {
template <class Range>
using element_of = std::remove_pointer_t<decltype(std::declval<Range&>().data())>;
template <class Range, class = void>
struct is_range : std::false_type {};
template <class Range>
struct is_range<Range, std::void_t<decltype(std::declval<Range&>().data()), decltype(std::declval<Range&>().size())>>
    : std::true_type {};
}  // namespace detail

/// Bytes that are read. Built from anything with data() and size() whose elements are trivially copyable.
class byte_view {
 public:
  byte_view() noexcept = default;
  byte_view(const void* data, std::size_t size) noexcept
      : data_(static_cast<const unsigned char*>(data)), size_(size) {}
  template <class Range, class = std::enable_if_t<detail::is_range<const Range>::value>>
  byte_view(const Range& range) noexcept  // NOLINT: implicit by design
      : byte_view(range.data(), range.size() * sizeof(detail::element_of<const Range>)) {
    static_assert(std::is_trivially_copyable_v<detail::element_of<const Range>>);
  }
  const unsigned char* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

 private:
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Bytes that are read or written.
class mutable_byte_view {
 public:
  mutable_byte_view() noexcept = default;
  mutable_byte_view(void* data, std::size_t size) noexcept : data_(static_cast<unsigned char*>(data)), size_(size) {}
  template <class Range,
            class = std::enable_if_t<detail::is_range<Range>::value && !std::is_const_v<detail::element_of<Range>>>>
  mutable_byte_view(Range& range) noexcept  // NOLINT: implicit by design
      : mutable_byte_view(range.data(), range.size() * sizeof(detail::element_of<Range>)) {
    static_assert(std::is_trivially_copyable_v<detail::element_of<Range>>);
  }
  unsigned char* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  operator byte_view() const noexcept { return {data_, size_}; }  // NOLINT: implicit by design

 private:
  unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

/// What besides its token id makes a position's rows what they are: an image digest, an adapter switch. `type` is the
/// engine's own numbering; the bytes (at most 1024) are borrowed and compared whole.
inline kvstrata_extra_key extra_key(std::uint64_t position, std::uint32_t type, byte_view bytes) noexcept {
  kvstrata_extra_key out{};
  out.struct_size = sizeof out;
  out.type = type;
  out.position = position;
  out.bytes = bytes.data();
  out.size = bytes.size();
  return out;
}

/// Token ids, with extra keys if there are any. Built from anything with data() and size() whose elements are int32_t.
class token_view {
 public:
  token_view() noexcept = default;
  token_view(const std::int32_t* ids, std::size_t count) noexcept : ids_(ids), count_(count) {}
  template <class Range,
            class = std::enable_if_t<detail::is_range<const Range>::value &&
                                     std::is_same_v<std::remove_cv_t<detail::element_of<const Range>>, std::int32_t>>>
  token_view(const Range& range) noexcept : token_view(range.data(), range.size()) {}  // NOLINT: implicit by design

  const std::int32_t* data() const noexcept { return ids_; }
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  std::int32_t operator[](std::size_t index) const noexcept { return ids_[index]; }
  const std::int32_t* begin() const noexcept { return ids_; }
  const std::int32_t* end() const noexcept { return ids_ + count_; }
  token_view first(std::size_t count) const noexcept { return {ids_, count}; }
  token_view subview(std::size_t from) const noexcept { return {ids_ + from, count_ - from}; }

  /// The same tokens with `keys`, in ascending order of position.
  token_view with_extra_keys(const kvstrata_extra_key* keys, std::size_t count) const noexcept {
    token_view out = *this;
    out.keys_ = keys;
    out.key_count_ = count;
    return out;
  }

  kvstrata_tokens to_c() const noexcept {
    kvstrata_tokens out{};
    out.struct_size = sizeof out;
    out.ids = ids_;
    out.count = count_;
    out.extra_keys = keys_;
    out.extra_key_count = key_count_;
    return out;
  }

 private:
  const std::int32_t* ids_ = nullptr;
  std::size_t count_ = 0;
  const kvstrata_extra_key* keys_ = nullptr;
  std::size_t key_count_ = 0;
};

}  // namespace v1
}  // namespace kvstrata
