// SPDX-License-Identifier: Apache-2.0
#include "lib/layout/identity.h"

#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/layout/presets.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
using namespace kvstrata::core::layout;

namespace {

Identity Make(std::vector<Field> fields) {
  auto identity = Identity::Create(std::move(fields));
  INFO(identity.status().ToString());
  REQUIRE(identity.ok());
  return *identity;
}

std::string FieldAtFault(std::vector<Field> fields) {
  return base::FieldOf(Identity::Create(std::move(fields)).status());
}

std::vector<Field> AllMandatory(const Layout& layout) {
  std::vector<Field> fields;
  for (const std::string_view name : MandatoryNames(layout)) fields.push_back({std::string(name), "x"});
  return fields;
}

}  // namespace

TEST_CASE("the canonical bytes are sorted and length-framed") {
  const Identity identity = Make({{"tenant", "ab"}, {"rope", ""}});
  const std::string expected = std::string("\x02\0\0\0", 4) + std::string("\x04\0\0\0rope", 8) + std::string(8, '\0') +
                               std::string("\x06\0\0\0tenant", 10) + std::string("\x02\0\0\0\0\0\0\0ab", 10);
  CHECK(identity.CanonicalBytes() == expected);
  CHECK(Make({{"rope", ""}, {"tenant", "ab"}}) == identity);
  const auto read = Identity::FromCanonicalBytes(expected);
  REQUIRE(read.ok());
  CHECK(*read == identity);
  CHECK(Identity().CanonicalBytes() == std::string(4, '\0'));
}

TEST_CASE("lengths keep neighbours apart, and empty is not absent") {
  const std::vector<Identity> identities = {
      Make({}),
      Make({{"a", ""}}),
      Make({{"a", "b"}}),
      Make({{"ab", ""}}),
      Make({{"a", ""}, {"b", ""}}),
      Make({{"a", std::string(1, '\0')}}),
      Make({{"a", std::string("b\0", 2)}}),
  };
  for (size_t i = 0; i < identities.size(); ++i) {
    for (size_t j = 0; j < identities.size(); ++j) {
      CAPTURE(i, j);
      CHECK((identities[i] == identities[j]) == (i == j));
      CHECK((identities[i].CanonicalBytes() == identities[j].CanonicalBytes()) == (i == j));
      CHECK(DescribeDifference(identities[i], identities[j]).empty() == (i == j));
    }
  }
}

TEST_CASE("bad fields are refused by name (K05)") {
  CHECK(FieldAtFault({{"a", ""}, {"b", ""}, {"a", "x"}}) == "identity.a");
  CHECK(FieldAtFault({{"a", ""}, {"", "x"}}) == "identity[1]");
  CHECK(FieldAtFault({{"A", ""}}) == "identity[0]");
  CHECK(FieldAtFault({{"a b", ""}}) == "identity[0]");
  CHECK(FieldAtFault({{std::string("a\0", 2), ""}}) == "identity[0]");
  CHECK(FieldAtFault({{std::string(65, 'a'), ""}}) == "identity[0]");
  CHECK(FieldAtFault({{"big", std::string(65'537, 'x')}}) == "identity.big");
  CHECK(Identity::Create(std::vector<Field>{{std::string(64, 'z'), std::string(65'536, 'x')}}).ok());
  std::vector<Field> many;
  for (int i = 0; i < 65; ++i) many.push_back({"f" + std::to_string(i), ""});
  CHECK(FieldAtFault(many) == "identity");
  many.pop_back();
  CHECK(Identity::Create(many).ok());

  const FieldView null_with_length[] = {{"ok", "x", 1}, {"image", nullptr, 4}};
  CHECK(base::FieldOf(Identity::Create(null_with_length).status()) == "identity.image");
  const FieldView null_without[] = {{"image", nullptr, 0}};
  CHECK(Identity::Create(null_without).value() == Make({{"image", ""}}));
  const FieldView huge[] = {{"image", "x", ~uint64_t{0}}};
  CHECK(base::FieldOf(Identity::Create(huge).status()) == "identity.image");
}

TEST_CASE("every truncation and every changed byte is refused or canonical") {
  const Identity identity = Make({{"tenant", "ab"}, {"rope", ""}, {"model.weights", std::string(40, '\x7f')}});
  const std::string bytes = identity.CanonicalBytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    CAPTURE(i);
    CHECK(base::CodeOf(Identity::FromCanonicalBytes(bytes.substr(0, i)).status()) == base::Code::kCorrupt);
    for (int value = 0; value < 256; ++value) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(value);
      const auto read = Identity::FromCanonicalBytes(changed);
      const bool strict = read.ok() ? read->CanonicalBytes() == changed : !read.status().ok();
      if (!strict) FAIL("byte " << i << " as " << value << " is neither refused nor canonical");
    }
  }
  CHECK_FALSE(Identity::FromCanonicalBytes(bytes + "x").ok());
  CHECK_FALSE(Identity::FromCanonicalBytes(std::string("\xff\xff\xff\xff", 4)).ok());
}

TEST_CASE("unsorted or doubled stored fields are corrupt") {
  const std::string a = std::string("\x01\0\0\0a", 5) + std::string(8, '\0');
  const std::string b = std::string("\x01\0\0\0b", 5) + std::string(8, '\0');
  const std::string two = std::string("\x02\0\0\0", 4);
  CHECK(Identity::FromCanonicalBytes(two + a + b).ok());
  CHECK(base::CodeOf(Identity::FromCanonicalBytes(two + b + a).status()) == base::Code::kCorrupt);
  CHECK(base::CodeOf(Identity::FromCanonicalBytes(two + a + a).status()) == base::Code::kCorrupt);
}

TEST_CASE("each mandatory name of each family is enforced (K06 to K09)") {
  GqaOptions gqa;
  gqa.layers = 1;
  gqa.kv_heads = 1;
  gqa.head_dim = 8;
  gqa.split = true;
  LayoutDesc custom;
  custom.streams = {{StreamKind::kRows, Role::kOther, 0, 1, 8, 0, Packing::kRaw, 0}};
  std::vector<Layout> layouts = {GqaLayout(gqa).value(), MlaLayout({.layers = 1}).value(), OpaqueLayout().value(),
                                 Layout::Create(custom).value()};
  for (const std::string_view name : PresetNames()) layouts.push_back(Preset(name).value());
  for (const Layout& layout : layouts) {
    CAPTURE(layout.family());
    CHECK(CheckMandatory(layout, Make(AllMandatory(layout))).ok());
    for (size_t i = 0; i < AllMandatory(layout).size(); ++i) {
      std::vector<Field> fields = AllMandatory(layout);
      const std::string name = fields[i].name;
      fields[i].bytes.clear();
      CHECK(CheckMandatory(layout, Make(fields)).ok());
      fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(i));
      const absl::Status missing = CheckMandatory(layout, Make(fields));
      CHECK(base::CodeOf(missing) == base::Code::kInvalidArgument);
      CHECK(base::FieldOf(missing) == "identity." + name);
    }
  }
}

TEST_CASE("the mandatory names of the families") {
  const std::vector<std::string_view> full = {
      "model.weights",        "model.quantization", "rope",  "packing", "adapter",
      "engine.state_version", "kernel.numerics",    "tenant"};
  for (const std::string_view name : PresetNames()) CHECK(MandatoryNames(Preset(name).value()) == full);
  CHECK(MandatoryNames(OpaqueLayout().value()) ==
        std::vector<std::string_view>{"model.weights", "adapter", "engine.state_version", "tenant"});
  GqaOptions gqa;
  gqa.layers = gqa.kv_heads = gqa.head_dim = 1;
  CHECK(MandatoryNames(GqaLayout(gqa).value()) == full);
  gqa.split = true;
  CHECK(MandatoryNames(GqaLayout(gqa).value()).back() == "shard");
}

TEST_CASE("a difference names the field and shows short values (R12)") {
  const std::string digest_a = std::string(40, 'd') + "a";
  const std::string digest_b = std::string(40, 'd') + "b";
  const Identity stored = Make({{"adapter", "lora-1"}, {"model.weights", digest_a}, {"tenant", "secret"}});
  CHECK(DescribeDifference(stored, stored).empty());
  CHECK(
      DescribeDifference(
          stored, Make({{"adapter", std::string("\x00\xff", 2)}, {"model.weights", digest_a}, {"tenant", "secret"}})) ==
      std::vector<std::string>{"adapter: stored \"lora-1\" (6 bytes), given 0x00ff (2 bytes)"});
  CHECK(DescribeDifference(stored, Make({{"model.weights", digest_a}, {"tenant", "secret"}})) ==
        std::vector<std::string>{"adapter: stored \"lora-1\" (6 bytes), given absent"});
  CHECK(DescribeDifference(stored, Make({{"adapter", "lora-1"}, {"model.weights", digest_b}, {"tenant", "secret"}})) ==
        std::vector<std::string>{"model.weights: stored \"...a\" (41 bytes), given \"...b\" (41 bytes)"});
  CHECK(DescribeDifference(Make({{"rope", std::string(40, 'r')}}), Make({{"rope", ""}})) ==
        std::vector<std::string>{"rope: stored \"" + std::string(32, 'r') + "...\" (40 bytes), given \"\" (0 bytes)"});
  CHECK(DescribeDifference(stored, Make({{"adapter", "lora-1"}, {"model.weights", digest_a}, {"tenant", "other"}})) ==
        std::vector<std::string>{"tenant: stored a value of 6 bytes, given a value of 5 bytes"});
}
