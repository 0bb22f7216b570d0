// SPDX-License-Identifier: Apache-2.0
// Steps of a sequence's way: store, look up, plan, restore.
#include "tests/conformance/cpp/case.h"

namespace kvstrata::conformance {
namespace {

constexpr std::size_t kGuard = 16;
constexpr unsigned char kUntouched = 0xEE;

bool IsRows(const layout& what, std::uint32_t stream) {
  const result<stream_info> info = what.stream(stream);
  return info && info->kind == KVSTRATA_STREAM_ROWS;
}

// Writes the rows of all streams at `position` to new memory and registers it.
result<void> SetSources(writer& to, const layout& what, const Step& step, std::uint64_t position,
                        std::vector<std::vector<unsigned char>>& memory) {
  const result<layout_info> info = what.info();
  if (!info) return info.error();
  memory.resize(info->stream_count);
  for (std::uint32_t index = 0; index < info->stream_count; ++index) {
    const result<stream_info> stream = what.stream(index);
    if (!stream) return stream.error();
    std::uint64_t at = 0;
    std::uint64_t rows = position / stream->ratio;
    if (stream->kind != KVSTRATA_STREAM_ROWS) {
      const result<std::uint64_t> state_rows = what.rows_at(index, position);
      if (!state_rows) return state_rows.error();
      rows = *state_rows;
      at = position;
    }
    const std::uint64_t row_bytes = stream->row_bytes != 0 ? stream->row_bytes : step.Number("opaque", 100);
    memory[index] = Fill(step.Number("mark"), index, at, 0, rows, row_bytes);
    if (auto done = to.set_source(buffer::linear(index, memory[index])); !done) return done;
  }
  return {};
}

constexpr std::uint64_t kKnownFlags = KVSTRATA_LOOKUP_PEEK | KVSTRATA_LOOKUP_NO_LEASE;

// The C++ options have no member for a bit that the library does not know: the C function says what it thinks of it.
result<match> LookUpWithFlags(const name_space& in, const token_view& tokens, std::uint64_t flags) {
  auto options = detail::sized<kvstrata_lookup_options>();
  options.flags = static_cast<std::uint32_t>(flags);
  const kvstrata_tokens c_tokens = tokens.to_c();
  kvstrata_match* out = nullptr;
  error failure;
  const kvstrata_status status = kvstrata_lookup(in.get(), &c_tokens, &options, &out, failure.c_error());
  if (status != KVSTRATA_OK) return failure.with_code(status);
  return match(out);
}

}  // namespace

result<Answers> Case::StoreTokens(const Step& step) {
  const Space& space = spaces_.at(step.name);
  writer_options options;
  const std::uint64_t flags = step.Number("flags");
  options.no_admit = (flags & KVSTRATA_WRITER_NO_ADMIT) != 0;
  options.no_snapshots = (flags & KVSTRATA_WRITER_NO_SNAPSHOTS) != 0;
  options.admit_inexact = (flags & KVSTRATA_WRITER_ADMIT_INEXACT) != 0;
  options.restart_multiple = static_cast<std::uint32_t>(step.Number("restart"));
  const auto name = step.Value("match");
  const match* const continues = name ? &matches_.at(*name).handle : nullptr;
  result<writer> made = space.handle.open_writer(continues, options);
  if (!made) return made.error();
  std::uint64_t begin = 0;
  if (continues != nullptr) {
    const result<match_info> info = continues->info();
    if (!info) return info.error();
    begin = info->usable_tokens;
  }
  const std::vector<std::int32_t> ids = TokensOf(*step.Value("tokens"));
  std::vector<std::vector<unsigned char>> memory;
  for (const std::uint32_t position : Numbers(step.Value("at").value_or(std::to_string(ids.size())))) {
    if (auto done = SetSources(*made, *space.what, step, position, memory); !done) return done.error();
    if (auto done = made->advance(token_view(ids).first(position).subview(begin), position); !done) {
      return done.error();
    }
    begin = position;
    if (step.Number("snapshot") == 0) continue;
    if (auto done = made->snapshot(); !done) return done.error();
  }
  commit_options commit;
  commit.durable = step.Number("durable") != 0;
  commit.output_end = step.Number("output_end") != 0;
  const result<commit_info> info = made->commit(commit);
  if (!info) return info.error();
  return Answers("kvstrata_commit_info", *info);
}

result<Answers> Case::Positions(const Step& step) {
  writer_options options;
  options.restart_multiple = static_cast<std::uint32_t>(step.Number("restart"));
  result<writer> made = spaces_.at(step.name).handle.open_writer(nullptr, options);
  if (!made) return made.error();
  const result<std::vector<std::uint64_t>> positions = made->snapshot_positions(TokensOf(*step.Value("tokens")));
  if (!positions) return positions.error();
  std::string text;
  for (const std::uint64_t position : *positions) text += (text.empty() ? "" : ",") + std::to_string(position);
  return Answers().Add("positions", text);
}

result<Answers> Case::Lookup(const Step& step) {
  std::vector<std::string> texts;
  texts.reserve(step.given.size());  // the keys point into it
  std::vector<kvstrata_extra_key> keys;
  for (const auto& [key, value] : step.given) {
    if (key != "key") continue;
    const std::vector<std::string> words = Split(value, ',');
    texts.push_back(words.at(2));
    keys.push_back(extra_key(std::stoull(words[0]), static_cast<std::uint32_t>(std::stoul(words[1])), texts.back()));
  }
  lookup_options options;
  const std::uint64_t flags = step.Number("flags");
  options.peek = (flags & KVSTRATA_LOOKUP_PEEK) != 0;
  options.no_lease = (flags & KVSTRATA_LOOKUP_NO_LEASE) != 0;
  options.held_tokens = step.Number("held");
  options.allowed_modes = static_cast<std::uint32_t>(step.Number("modes"));
  options.restart_multiple = static_cast<std::uint32_t>(step.Number("restart"));
  options.min_gain_tokens = step.Number("min_gain");
  options.prefill_tokens_per_second = step.Real("prefill");
  options.storage_bytes_per_second = step.Real("rate");
  options.lease_ms = step.Number("lease_ms");
  const Space& space = spaces_.at(*step.Value("namespace"));
  const std::vector<std::int32_t> ids = TokensOf(*step.Value("tokens"));
  const token_view tokens = token_view(ids).with_extra_keys(keys.data(), keys.size());
  result<match> found =
      (flags & ~kKnownFlags) != 0 ? LookUpWithFlags(space.handle, tokens, flags) : space.handle.lookup(tokens, options);
  if (!found) return found.error();
  const result<match_info> info = found->info();
  if (!info) return info.error();
  matches_[step.name] = Found{std::move(*found), space.what};
  return Answers("kvstrata_match_info", *info);
}

result<Answers> Case::Limit(const Step& step) {
  match& found = matches_.at(step.name).handle;
  if (auto done = found.limit(step.Number("tokens")); !done) return done.error();
  const result<match_info> info = found.info();
  if (!info) return info.error();
  return Answers("kvstrata_match_info", *info);
}

result<Answers> Case::Renew(const Step& step) {
  const result<void> done = matches_.at(step.name).handle.renew(step.Number("ms"));
  if (!done) return done.error();
  return Answers();
}

result<Answers> Case::Agree(const Step& step) {
  std::vector<match*> matches = {&matches_.at(step.name).handle};
  for (const std::string& name : Split(*step.Value("with"), ',')) matches.push_back(&matches_.at(name).handle);
  const result<std::uint64_t> usable = agree(matches);
  if (!usable) return usable.error();
  return Answers().Add("usable", *usable);
}

result<Answers> Case::Difference(const Step& step) {
  const result<std::uint64_t> position = matches_.at(step.name).handle.first_difference();
  if (!position) return position.error();
  return Answers().Add("position", *position == UINT64_MAX ? "none" : std::to_string(*position));
}

result<Answers> Case::Plan(const Step& step) {
  Found& found = matches_.at(*step.Value("match"));
  plan_options options;
  options.early_release = (step.Number("flags") & KVSTRATA_PLAN_EARLY_RELEASE) != 0;
  options.timeout_ms = step.Number("timeout");
  result<restore_plan> made = found.handle.plan(options);
  if (!made) return made.error();
  result<std::vector<plan_segment>> segments = made->segments();
  if (!segments) return segments.error();
  Restore restore{std::move(*made), found.what, *segments, {}, 0};
  std::uint64_t bytes = 0;
  for (const plan_segment& segment : restore.segments) {
    bytes += segment.bytes;
    restore.memory.emplace_back(static_cast<std::size_t>(segment.bytes) + 2 * kGuard, kUntouched);
  }
  const std::size_t count = restore.segments.size();
  plans_.erase(step.name);
  plans_.emplace(step.name, std::move(restore));
  return Answers().Add("segments", count).Add("bytes", bytes);
}

result<Answers> Case::Start(const Step& step) {
  Restore& restore = plans_.at(step.name);
  restore.mark = step.Number("mark");
  std::vector<buffer> buffers;
  for (std::size_t i = 0; i < restore.segments.size(); ++i) {
    const plan_segment& segment = restore.segments[i];
    const std::size_t size = restore.memory[i].size() - 2 * kGuard - (i == 0 ? step.Number("short") : 0);
    buffers.push_back(buffer::linear(segment.stream, mutable_byte_view(restore.memory[i].data() + kGuard, size),
                                     IsRows(*restore.what, segment.stream) ? segment.first_row : 0));
  }
  if (step.Number("leave_out") != 0) buffers.pop_back();
  if (auto done = restore.plan.start(buffers); !done) return done.error();
  return Answers();
}

std::uint64_t Case::WrongBytes(const Restore& restore, std::uint64_t snapshot_position) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < restore.segments.size(); ++i) {
    const plan_segment& segment = restore.segments[i];
    const bool rows = IsRows(*restore.what, segment.stream);
    const std::vector<unsigned char> inside =
        Fill(restore.mark, segment.stream, rows ? 0 : snapshot_position, rows ? segment.first_row : 0, segment.rows,
             segment.bytes / segment.rows);
    std::vector<unsigned char> expected(kGuard, kUntouched);
    expected.insert(expected.end(), inside.begin(), inside.end());
    expected.resize(expected.size() + kGuard, kUntouched);
    for (std::size_t byte = 0; byte < expected.size(); ++byte) wrong += expected[byte] != restore.memory[i].at(byte);
  }
  return wrong;
}

result<Answers> Case::Wait(const Step& step) {
  const Restore& restore = plans_.at(step.name);
  const result<plan_result> ended = restore.plan.wait(step.Number("timeout", no_timeout));
  if (!ended) return ended.error();
  Answers out("kvstrata_plan_result", *ended);
  out.Add("plan_status", static_cast<std::uint64_t>(ended->status));
  return out.Add("wrong", WrongBytes(restore, ended->snapshot_position));
}

// Looks at no destination: a running plan's are not the caller's.
result<Answers> Case::Poll(const Step& step) {
  const result<plan_result> now = plans_.at(step.name).plan.poll();
  if (!now) return now.error();
  return Answers("kvstrata_plan_result", *now);
}

result<Answers> Case::Cancel(const Step& step) {
  plans_.at(step.name).plan.cancel();
  return Answers();
}

result<Answers> Case::Pin(const Step& step) {
  result<pinned_rows> made = matches_.at(*step.Value("match")).handle.pin();
  if (!made) return made.error();
  const result<pin_info> info = made->info();
  if (!info) return info.error();
  pins_[step.name] = std::move(*made);
  return Answers("kvstrata_pin_info", *info);
}

result<Answers> Case::Pinned(const Step& step) {
  const pinned_rows& pin = pins_.at(step.name);
  const result<pin_info> info = pin.info();
  if (!info) return info.error();
  std::string streams, first_rows, rows;
  std::uint64_t bytes = 0, wrong = 0;
  for (std::uint64_t i = 0; i < info->range_count; ++i) {
    const result<pin_range> range = pin.range(i);
    if (!range) return range.error();
    const char* const comma = i == 0 ? "" : ",";
    streams += comma + std::to_string(range->stream);
    first_rows += comma + std::to_string(range->first_row);
    rows += comma + std::to_string(range->rows);
    bytes += range->bytes;
    if (range->rows == 0) continue;
    const std::vector<unsigned char> expected =
        Fill(step.Number("mark"), range->stream, 0, range->first_row, range->rows, range->bytes / range->rows);
    const auto* const found = static_cast<const unsigned char*>(range->data);
    for (std::size_t byte = 0; byte < expected.size(); ++byte) wrong += expected[byte] != found[byte];
  }
  Answers out;
  out.Add("streams", streams).Add("first_rows", first_rows).Add("rows", rows);
  return out.Add("bytes", bytes).Add("wrong", wrong);
}

}  // namespace kvstrata::conformance
