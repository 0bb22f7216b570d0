// SPDX-License-Identifier: Apache-2.0
// The value types of the C++ API that need no library: result, error, handle, views, buffer, identity.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvstrata/kvstrata.hpp"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::errc;
using kvstrata::error;
using kvstrata::result;

TEST_CASE("an error owns its text and cuts what is too long") {
  error copy;
  {
    std::string field = "capacity_bytes";
    std::string message(1000, 'x');
    copy = error(errc::no_space, field, message, 28);
  }
  CHECK(copy.code() == errc::no_space);
  CHECK(copy.native_code() == 28);
  CHECK(copy.field() == "capacity_bytes");
  CHECK(copy.message().size() == 239);  // 240 with the final 0
  CHECK(copy.c_str()[239] == '\0');
}

TEST_CASE("an error takes what C wrote, even without a final 0") {
  error failure;
  kvstrata_error* c = failure.c_error();
  REQUIRE(c->struct_size == sizeof(kvstrata_error));
  for (char& one : c->field) one = 'f';
  failure.with_code(KVSTRATA_E_IO);
  CHECK(failure.code() == errc::io);
  CHECK(failure.field().size() == sizeof c->field);
}

result<std::unique_ptr<int>> half(int number) {
  if (number % 2 != 0) return error(errc::invalid_argument, "number", "odd");
  return std::make_unique<int>(number / 2);
}

TEST_CASE("a result holds a move-only value or an error") {
  auto good = half(8);
  REQUIRE(good);
  CHECK(**good == 4);
  std::unique_ptr<int> taken = std::move(good).value();
  CHECK(*taken == 4);
  CHECK(good.code() == errc::ok);

  auto bad = half(7);
  REQUIRE(!bad.ok());
  CHECK(bad.code() == errc::invalid_argument);
  CHECK(bad.error().field() == "number");
  CHECK(*std::move(bad).value_or(std::make_unique<int>(1)) == 1);

  result<void> done;
  CHECK(done.ok());
  done = error(errc::busy, "", "later");
  CHECK(done.code() == errc::busy);
}

struct counted_traits {
  using pointer = int*;
  static void destroy(pointer p) noexcept { ++*p; }
};
using counted = kvstrata::handle<counted_traits>;

TEST_CASE("a handle is pointer-sized, moves, and destroys exactly once") {
  static_assert(sizeof(counted) == sizeof(void*));
  static_assert(!std::is_copy_constructible_v<counted> && std::is_nothrow_move_constructible_v<counted>);
  int first = 0, second = 0, third = 0;
  {
    counted a(&first);
    counted b = std::move(a);
    CHECK(!a);
    CHECK(b.get() == &first);
    b = counted(&second);
    CHECK(first == 1);
    counted c(&third);
    CHECK(c.release() == &third);
  }
  CHECK(first == 1);
  CHECK(second == 1);
  CHECK(third == 0);
}

TEST_CASE("views are built from contiguous ranges") {
  std::vector<std::int32_t> ids = {5, 6, 7};
  kvstrata::token_view tokens = ids;
  CHECK(tokens.size() == 3);
  CHECK(tokens.subview(1)[0] == 6);
  const unsigned char digest[4] = {1, 2, 3, 4};
  const kvstrata_extra_key key = kvstrata::extra_key(2, 9, {digest, sizeof digest});
  const kvstrata_tokens c = tokens.with_extra_keys(&key, 1).to_c();
  CHECK(c.struct_size == sizeof(kvstrata_tokens));
  CHECK(c.ids == ids.data());
  CHECK(c.count == 3);
  CHECK(c.extra_keys[0].position == 2);
  CHECK(c.extra_keys[0].size == 4);

  kvstrata::byte_view bytes = ids;
  CHECK(bytes.size() == 12);
  std::array<std::uint16_t, 3> cells{};
  kvstrata::mutable_byte_view writable = cells;
  CHECK(writable.size() == 6);
  static_assert(!std::is_constructible_v<kvstrata::mutable_byte_view, const std::vector<int>&>);
  static_assert(!std::is_constructible_v<kvstrata::token_view, const std::vector<std::uint32_t>&>);
}

TEST_CASE("a buffer describes each form") {
  std::vector<unsigned char> memory(4096);
  const std::vector<std::int64_t> pages = {3, -1, 0};
  kvstrata::buffer planar = kvstrata::buffer::pages(4, memory, 2, 1168, pages.data(), pages.size(), 7);
  planar.column(576, 0, 576).column(8, 1152, 8);
  const kvstrata::buffer copy = planar;  // the columns' pointer must follow the copy
  const kvstrata_buffer c = copy.to_c();
  CHECK(c.struct_size == sizeof(kvstrata_buffer));
  CHECK(c.stream == 4);
  CHECK(c.form == KVSTRATA_FORM_PAGES);
  CHECK(c.page_id_bytes == 8);
  CHECK(c.page_count == 3);
  CHECK(c.first_page == 7);
  REQUIRE(c.column_count == 2);
  CHECK(static_cast<const void*>(c.columns) > static_cast<const void*>(&copy));
  CHECK(static_cast<const void*>(c.columns) < static_cast<const void*>(&copy + 1));
  CHECK(c.columns[1].offset == 1152);

  const kvstrata_buffer ring = kvstrata::buffer::ring(1, memory, 8, 3).row_stride(100).on_device(2).to_c();
  CHECK(ring.form == KVSTRATA_FORM_RING);
  CHECK(ring.capacity_rows == 8);
  CHECK(ring.first_row == 3);
  CHECK(ring.row_stride == 100);
  CHECK(ring.memory == KVSTRATA_MEMORY_DEVICE);
  CHECK(ring.columns == nullptr);
  CHECK(kvstrata::buffer::linear(0, memory, 12).to_c().first_row == 12);
}

TEST_CASE("an identity keeps names and bytes apart") {
  kvstrata::identity who;
  who.set("tenant", "a\0b").set("adapter", "").set_number("layers", 0x0102);
  const unsigned char raw[2] = {0, 255};
  who.set_bytes("weights", {raw, 2});
  const auto fields = who.to_c();
  REQUIRE(fields.size() == 4);
  CHECK(std::string(fields[0].name) == "tenant");
  CHECK(fields[1].size == 0);
  CHECK(fields[1].bytes != nullptr);
  CHECK(static_cast<const unsigned char*>(fields[2].bytes)[0] == 2);
  CHECK(fields[2].size == 8);
  CHECK(fields[3].size == 2);
}

TEST_CASE("names and bits of modes") {
  using kvstrata::resume_mode;
  CHECK(std::string(name_of(resume_mode::snapshot_replay)) == "snapshot_replay");
  CHECK(kvstrata::mode_bit(resume_mode::full_replay) == 8);
  CHECK(std::string(name_of(kvstrata::reason::not_worth_it)) == "not_worth_it");
}

TEST_CASE("options of zero are the C defaults") {
  const kvstrata_cache_options c = kvstrata::cache_options{}.to_c();
  kvstrata_cache_options zero{};
  zero.struct_size = sizeof zero;
  CHECK(std::memcmp(&c, &zero, sizeof zero) == 0);
  const kvstrata_lookup_options l = kvstrata::lookup_options{}.to_c();
  kvstrata_lookup_options zero_lookup{};
  zero_lookup.struct_size = sizeof zero_lookup;
  CHECK(std::memcmp(&l, &zero_lookup, sizeof zero_lookup) == 0);
}

}  // namespace
