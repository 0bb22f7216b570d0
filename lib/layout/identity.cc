// SPDX-License-Identifier: Apache-2.0
#include "lib/layout/identity.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lib/base/status.h"

namespace kvstrata::core::layout {
namespace {

bool IsNameChar(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-'; }

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxIdentityNameBytes && std::ranges::all_of(name, IsNameChar);
}

std::string FieldLabel(size_t index) { return "identity[" + std::to_string(index) + "]"; }
std::string FieldLabel(std::string_view name) { return "identity." + std::string(name); }

absl::Status CheckField(size_t index, std::string_view name, uint64_t size) {
  if (!IsName(name)) {
    return base::InvalidArgument(FieldLabel(index), "a name is 1.." + std::to_string(kMaxIdentityNameBytes) +
                                                        " characters of a-z 0-9 _ . -, this one has " +
                                                        std::to_string(name.size()) + " bytes");
  }
  if (size > kMaxIdentityValueBytes) {
    return base::InvalidArgument(
        FieldLabel(name), std::to_string(size) + " bytes, the most is " + std::to_string(kMaxIdentityValueBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(size_t count) {
  if (count <= kMaxIdentityFields) return absl::OkStatus();
  return base::InvalidArgument("identity",
                               std::to_string(count) + " fields, the most is " + std::to_string(kMaxIdentityFields));
}

template <typename T>
void AppendLittleEndian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

// Takes from the front; nullopt when too few bytes are left.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  bool at_end() const { return rest_.empty(); }

  std::optional<std::string_view> Take(uint64_t size) {
    if (size > rest_.size()) return std::nullopt;
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  template <typename T>
  std::optional<T> Number() {
    const auto bytes = Take(sizeof(T));
    if (!bytes.has_value()) return std::nullopt;
    T value = 0;
    for (size_t i = sizeof(T); i-- > 0;) value = static_cast<T>(value << 8 | static_cast<unsigned char>((*bytes)[i]));
    return value;
  }

 private:
  std::string_view rest_;
};

std::optional<Field> ReadField(ByteReader& reader) {
  const auto name_size = reader.Number<uint32_t>();
  if (!name_size.has_value() || *name_size > kMaxIdentityNameBytes) return std::nullopt;
  const auto name = reader.Take(*name_size);
  if (!name.has_value()) return std::nullopt;
  const auto size = reader.Number<uint64_t>();
  if (!size.has_value() || *size > kMaxIdentityValueBytes) return std::nullopt;
  const auto bytes = reader.Take(*size);
  if (!bytes.has_value()) return std::nullopt;
  return Field{std::string(*name), std::string(*bytes)};
}

// What makes stored bytes of a family mean the same, one line a family. `rope` is the RoPE and YaRN parameters,
// `packing` the row and index-key formats (FP4 or FP8 keys, Hadamard or not), `engine.state_version` the engine and
// the version of its state, `kernel.numerics` what the kernels' arithmetic depends on.
struct FamilyNames {
  std::string_view family;
  std::vector<std::string_view> names;
};

const std::vector<std::string_view>& NamesOfFamily(std::string_view family) {
  static const FamilyNames kTable[] = {
      {kFamilyDeepSeekV4,
       {"model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version", "kernel.numerics",
        "tenant"}},
      {kFamilyDeepSeekV41,
       {"model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version", "kernel.numerics",
        "tenant"}},
      {kFamilyDeepSeekV32,
       {"model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version", "kernel.numerics",
        "tenant"}},
      {kFamilyGqa,
       {"model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version", "kernel.numerics",
        "tenant"}},
      {kFamilyMla,
       {"model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version", "kernel.numerics",
        "tenant"}},
      {kFamilyOpaque, {"model.weights", "adapter", "engine.state_version", "tenant"}},
      {kFamilyCustom, {"model.weights", "tenant"}},
  };
  for (const FamilyNames& entry : kTable) {
    if (entry.family == family) return entry.names;
  }
  return kTable[std::size(kTable) - 1].names;
}

constexpr std::string_view kShardName = "shard";
constexpr std::string_view kTenantName = "tenant";
constexpr size_t kMaxShownBytes = 32;

// At most kMaxShownBytes of a value, from `offset` on: as text when it is printable ASCII, else as hex.
std::string Excerpt(std::string_view bytes, size_t offset) {
  const std::string_view cut = bytes.substr(std::min(offset, bytes.size()), kMaxShownBytes);
  const std::string before = offset == 0 ? "" : "...";
  const std::string after = offset + cut.size() < bytes.size() ? "..." : "";
  if (std::ranges::all_of(cut, [](char c) { return c >= ' ' && c <= '~' && c != '"'; })) {
    return "\"" + before + std::string(cut) + after + "\"";
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text = "0x" + before;
  for (const char c : cut) {
    text += kHex[static_cast<unsigned char>(c) >> 4];
    text += kHex[static_cast<unsigned char>(c) & 15];
  }
  return text + after;
}

std::string Shown(const Field* field, size_t offset) {
  if (field == nullptr) return "absent";
  const std::string size = std::to_string(field->bytes.size()) + (field->bytes.size() == 1 ? " byte" : " bytes");
  // A tenant's value may be a secret salt: never in a message.
  if (field->name == kTenantName) return "a value of " + size;
  return Excerpt(field->bytes, offset) + " (" + size + ")";
}

// Where to begin showing two values, so that what differs is among the bytes shown.
size_t ShownFrom(const Field* a, const Field* b) {
  if (a == nullptr || b == nullptr) return 0;
  const auto [left, right] = std::ranges::mismatch(a->bytes, b->bytes);
  const size_t same = static_cast<size_t>(left - a->bytes.begin());
  return same < kMaxShownBytes ? 0 : same;
}

}  // namespace

absl::StatusOr<Identity> Identity::Create(std::span<const FieldView> fields) {
  if (auto status = CheckCount(fields.size()); !status.ok()) return status;
  std::vector<Field> owned;
  owned.reserve(fields.size());
  for (size_t i = 0; i < fields.size(); ++i) {
    const FieldView& field = fields[i];
    if (auto status = CheckField(i, field.name, field.size); !status.ok()) return status;
    if (field.data == nullptr && field.size != 0) {
      return base::InvalidArgument(FieldLabel(field.name), "null with a length of " + std::to_string(field.size));
    }
    owned.push_back({std::string(field.name), {}});
    if (field.size != 0) owned.back().bytes.assign(static_cast<const char*>(field.data), field.size);
  }
  return Create(std::move(owned));
}

absl::StatusOr<Identity> Identity::Create(std::vector<Field> fields) {
  if (auto status = CheckCount(fields.size()); !status.ok()) return status;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (auto status = CheckField(i, fields[i].name, fields[i].bytes.size()); !status.ok()) return status;
  }
  std::ranges::sort(fields, {}, &Field::name);
  for (size_t i = 1; i < fields.size(); ++i) {
    if (fields[i].name == fields[i - 1].name) {
      return base::InvalidArgument(FieldLabel(fields[i].name), "given twice");
    }
  }
  Identity identity;
  identity.fields_ = std::move(fields);
  return identity;
}

absl::StatusOr<Identity> Identity::FromCanonicalBytes(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto count = reader.Number<uint32_t>();
  if (!count.has_value() || *count > kMaxIdentityFields) return base::Corrupt("identity", "field count");
  std::vector<Field> fields;
  for (uint32_t i = 0; i < *count; ++i) {
    auto field = ReadField(reader);
    if (!field.has_value()) return base::Corrupt(FieldLabel(i), "cut short or too long");
    if (!IsName(field->name)) return base::Corrupt(FieldLabel(i), "not a name");
    if (i > 0 && field->name <= fields.back().name) return base::Corrupt(FieldLabel(i), "not sorted, or given twice");
    fields.push_back(std::move(*field));
  }
  if (!reader.at_end()) return base::Corrupt("identity", "bytes after the last field");
  Identity identity;
  identity.fields_ = std::move(fields);
  return identity;
}

const Field* Identity::Find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(fields_, name, {}, [](const Field& f) { return std::string_view(f.name); });
  return found != fields_.end() && found->name == name ? &*found : nullptr;
}

std::string Identity::CanonicalBytes() const {
  std::string bytes;
  AppendLittleEndian(bytes, static_cast<uint32_t>(fields_.size()));
  for (const Field& field : fields_) {
    AppendLittleEndian(bytes, static_cast<uint32_t>(field.name.size()));
    bytes += field.name;
    AppendLittleEndian(bytes, static_cast<uint64_t>(field.bytes.size()));
    bytes += field.bytes;
  }
  return bytes;
}

std::vector<std::string_view> MandatoryNames(const Layout& layout) {
  std::vector<std::string_view> names = NamesOfFamily(layout.family());
  if (layout.has_split()) names.push_back(kShardName);
  return names;
}

absl::Status CheckMandatory(const Layout& layout, const Identity& identity) {
  for (const std::string_view name : MandatoryNames(layout)) {
    if (identity.Find(name) == nullptr) {
      return base::InvalidArgument(FieldLabel(name),
                                   "family " + layout.family() + " needs this field; it may be empty, not absent");
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> DescribeDifference(const Identity& stored, const Identity& given) {
  std::map<std::string_view, std::pair<const Field*, const Field*>> pairs;
  for (const Field& field : stored.fields()) pairs[field.name].first = &field;
  for (const Field& field : given.fields()) pairs[field.name].second = &field;
  std::vector<std::string> lines;
  for (const auto& [name, pair] : pairs) {
    const auto& [a, b] = pair;
    if (a != nullptr && b != nullptr && a->bytes == b->bytes) continue;
    const size_t from = ShownFrom(a, b);
    lines.push_back(std::string(name) + ": stored " + Shown(a, from) + ", given " + Shown(b, from));
  }
  return lines;
}

}  // namespace kvstrata::core::layout
