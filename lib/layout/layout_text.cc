// SPDX-License-Identifier: Apache-2.0
// The canonical text. Grammar, one space between words, "\n" after every line, decimal numbers without leading zeros:
//
//   kvstrata-layout 1
//   family NAME
//   profile f|q|s|opaque
//   block_tokens N
//   replay none|full|bounded window N layers N
//   streams N
//   stream I rows|state ROLE layer N ratio N row_bytes N state_rows N packing NAME flags -|NAME+NAME...    (N times)
//   end
#include "lib/layout/layout_text.h"

#include <charconv>

#include "lib/base/status.h"

namespace kvstrata::core::layout {
namespace {

template <typename T>
struct Named {
  T value;
  std::string_view name;
};

constexpr Named<StreamKind> kKindNames[] = {{StreamKind::kRows, "rows"}, {StreamKind::kState, "state"}};

constexpr Named<Role> kRoleNames[] = {{Role::kCsaEntry, "csa_entry"},
                                      {Role::kIndexKey, "index_key"},
                                      {Role::kHcaEntry, "hca_entry"},
                                      {Role::kWindow, "window"},
                                      {Role::kOverlap, "overlap"},
                                      {Role::kOpen, "open"},
                                      {Role::kIndexOverlap, "index_overlap"},
                                      {Role::kIndexOpen, "index_open"},
                                      {Role::kOpaque, "opaque"},
                                      {Role::kKey, "key"},
                                      {Role::kValue, "value"},
                                      {Role::kLatent, "latent"},
                                      {Role::kOther, "other"}};

constexpr Named<Packing> kPackingNames[] = {{Packing::kRaw, "raw"},
                                            {Packing::kF32, "f32"},
                                            {Packing::kBf16, "bf16"},
                                            {Packing::kF16, "f16"},
                                            {Packing::kFp8Row584, "fp8_row_584"},
                                            {Packing::kFp8Row528, "fp8_row_528"},
                                            {Packing::kFp4Row288, "fp4_row_288"},
                                            {Packing::kFp8Key132, "fp8_key_132"},
                                            {Packing::kFp4Key68, "fp4_key_68"},
                                            {Packing::kFp8Row656, "fp8_row_656"}};

constexpr Named<ReplayMode> kReplayNames[] = {
    {ReplayMode::kNone, "none"}, {ReplayMode::kFull, "full"}, {ReplayMode::kBounded, "bounded"}};

constexpr Named<Profile> kProfileNames[] = {
    {Profile::kF, "f"}, {Profile::kQ, "q"}, {Profile::kS, "s"}, {Profile::kOpaque, "opaque"}};

constexpr Named<Flags> kFlagNames[] = {
    {kExact, "exact"}, {kOptional, "optional"}, {kDraft, "draft"}, {kReplicated, "replicated"}, {kSplit, "split"}};

template <typename T, size_t n>
std::string_view NameOf(const Named<T> (&table)[n], T value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

constexpr std::string_view kTextName = "kvstrata-layout";
constexpr uint32_t kTextVersion = 1;

std::string Keyed(std::string_view key, uint32_t value) { return " " + std::string(key) + " " + std::to_string(value); }

absl::Status BadLine(size_t line, const std::string& problem) {
  return base::Corrupt("layout_text", "line " + std::to_string(line) + ": " + problem);
}

// The line that holds a field Create complained about.
size_t LineOf(std::string_view field) {
  constexpr size_t kFirstStreamLine = 7;
  constexpr std::string_view kStream = "streams[";
  if (field.starts_with(kStream)) {
    size_t index = 0;
    field.remove_prefix(kStream.size());
    std::from_chars(field.data(), field.data() + field.size(), index);
    return kFirstStreamLine + index;
  }
  if (field == "family") return 2;
  if (field == "profile") return 3;
  if (field == "block_tokens") return 4;
  if (field.starts_with("replay.")) return 5;
  return 6;
}

// Walks the text line by line and word by word. The first failure sticks; the caller checks once per line.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  size_t line_number() const { return line_number_; }
  bool ok() const { return problem_.empty(); }
  absl::Status Error() const { return BadLine(line_number_, problem_); }

  void NextLine() {
    if (!ok()) return;
    ++line_number_;
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) return Fail("the text is cut short");
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    line_done_ = false;
  }

  std::string_view Word() {
    if (!ok()) return {};
    if (line_done_) {
      Fail("a word is missing");
      return {};
    }
    const size_t end = line_.find(' ');
    const std::string_view word = line_.substr(0, end);
    line_done_ = end == std::string_view::npos;
    line_.remove_prefix(line_done_ ? line_.size() : end + 1);
    return word;
  }

  void Expect(std::string_view word) {
    const std::string_view found = Word();
    if (ok() && found != word) Fail("expected \"" + std::string(word) + "\", found " + Quoted(found));
  }

  uint32_t Value() {
    const std::string_view word = Word();
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool whole = error == std::errc() && end == word.data() + word.size();
    if (ok() && (!whole || (word.size() > 1 && word[0] == '0'))) Fail(Quoted(word) + " is not a number");
    return value;
  }

  uint32_t Keyed(std::string_view key) {
    Expect(key);
    return Value();
  }

  template <typename T, size_t n>
  T Name(const Named<T> (&table)[n]) {
    const std::string_view word = Word();
    for (const auto& entry : table) {
      if (entry.name == word) return entry.value;
    }
    if (ok()) Fail(Quoted(word) + " is not known here");
    return table[0].value;
  }

  uint32_t FlagSet() {
    std::string_view word = Word();
    if (word == "-") return 0;
    uint32_t flags = 0;
    while (ok()) {
      const size_t end = word.find('+');
      const std::string_view name = word.substr(0, end);
      uint32_t bit = 0;
      for (const auto& entry : kFlagNames) {
        if (entry.name == name) bit = entry.value;
      }
      if (bit == 0) Fail(Quoted(name) + " is not a flag");
      flags |= bit;
      if (end == std::string_view::npos) break;
      word.remove_prefix(end + 1);
    }
    return flags;
  }

  void EndLine() {
    if (ok() && !line_done_) Fail("more words than expected");
  }

 private:
  static std::string Quoted(std::string_view word) {
    std::string shown;
    for (const char c : word.substr(0, 32)) shown += c >= ' ' && c <= '~' ? c : '?';
    return "\"" + shown + "\"";
  }
  void Fail(std::string problem) { problem_ = std::move(problem); }

  std::string_view rest_;
  std::string_view line_;
  bool line_done_ = true;
  size_t line_number_ = 0;
  std::string problem_;
};

Stream ReadStream(Reader& reader, uint32_t index) {
  reader.NextLine();
  reader.Expect("stream");
  reader.Expect(std::to_string(index));
  Stream stream;
  stream.kind = reader.Name(kKindNames);
  stream.role = reader.Name(kRoleNames);
  stream.layer = reader.Keyed("layer");
  stream.ratio = reader.Keyed("ratio");
  stream.row_bytes = reader.Keyed("row_bytes");
  stream.state_rows = reader.Keyed("state_rows");
  reader.Expect("packing");
  stream.packing = reader.Name(kPackingNames);
  reader.Expect("flags");
  stream.flags = reader.FlagSet();
  reader.EndLine();
  return stream;
}

void ReadHead(Reader& reader, LayoutDesc& desc) {
  reader.NextLine();
  reader.Expect("family");
  desc.family = reader.Word();
  reader.EndLine();
  reader.NextLine();
  reader.Expect("profile");
  desc.profile = reader.Name(kProfileNames);
  reader.EndLine();
  reader.NextLine();
  desc.block_tokens = reader.Keyed("block_tokens");
  reader.EndLine();
  reader.NextLine();
  reader.Expect("replay");
  desc.replay.mode = reader.Name(kReplayNames);
  desc.replay.window = reader.Keyed("window");
  desc.replay.layers = reader.Keyed("layers");
  reader.EndLine();
}

}  // namespace

std::string_view KindName(StreamKind kind) { return NameOf(kKindNames, kind); }
std::string_view RoleName(Role role) { return NameOf(kRoleNames, role); }
std::string_view PackingName(Packing packing) { return NameOf(kPackingNames, packing); }
std::string_view ReplayModeName(ReplayMode mode) { return NameOf(kReplayNames, mode); }
std::string_view ProfileName(Profile profile) { return NameOf(kProfileNames, profile); }

std::string FlagsText(uint32_t flags) {
  std::string text;
  for (const auto& entry : kFlagNames) {
    if ((flags & entry.value) == 0) continue;
    if (!text.empty()) text += '+';
    text += entry.name;
  }
  return text.empty() ? "-" : text;
}

std::string FormatText(const LayoutDesc& desc) {
  std::string text = std::string(kTextName) + " " + std::to_string(kTextVersion) + "\n";
  text += "family " + desc.family + "\n";
  text += "profile " + std::string(ProfileName(desc.profile)) + "\n";
  text += "block_tokens " + std::to_string(desc.block_tokens) + "\n";
  text += "replay " + std::string(ReplayModeName(desc.replay.mode)) + Keyed("window", desc.replay.window) +
          Keyed("layers", desc.replay.layers) + "\n";
  text += "streams " + std::to_string(desc.streams.size()) + "\n";
  for (size_t i = 0; i < desc.streams.size(); ++i) {
    const Stream& s = desc.streams[i];
    text += "stream " + std::to_string(i) + " " + std::string(KindName(s.kind)) + " " + std::string(RoleName(s.role)) +
            Keyed("layer", s.layer) + Keyed("ratio", s.ratio) + Keyed("row_bytes", s.row_bytes) +
            Keyed("state_rows", s.state_rows) + " packing " + std::string(PackingName(s.packing)) + " flags " +
            FlagsText(s.flags) + "\n";
  }
  return text + "end\n";
}

size_t FirstDifferentLine(std::string_view a, std::string_view b) {
  size_t line = 1;
  for (size_t i = 0; i < a.size() && i < b.size() && a[i] == b[i]; ++i) line += a[i] == '\n';
  return line;
}

absl::StatusOr<Layout> Layout::FromText(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return base::Corrupt("layout_text",
                         std::to_string(text.size()) + " bytes, the most is " + std::to_string(kMaxTextBytes));
  }
  Reader reader(text);
  reader.NextLine();
  reader.Expect(kTextName);
  const uint32_t version = reader.Value();
  reader.EndLine();
  if (reader.ok() && version > kTextVersion) {
    return base::MakeStatus(
        base::Code::kFormatTooNew, "layout_text",
        "line 1: version " + std::to_string(version) + ", this library knows " + std::to_string(kTextVersion));
  }
  LayoutDesc desc;
  ReadHead(reader, desc);
  reader.NextLine();
  const uint32_t count = reader.Keyed("streams");
  reader.EndLine();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) desc.streams.push_back(ReadStream(reader, i));
  reader.NextLine();
  reader.Expect("end");
  reader.EndLine();
  if (!reader.ok()) return reader.Error();
  // What follows the last line, zeros that Create fills in, a version 0 and the order of flags show in one comparison.
  auto layout = Create(std::move(desc));
  if (!layout.ok()) return BadLine(LineOf(base::FieldOf(layout.status())), std::string(layout.status().message()));
  if (layout->ToText() != text) return BadLine(FirstDifferentLine(layout->ToText(), text), "not canonical");
  return layout;
}

}  // namespace kvstrata::core::layout
