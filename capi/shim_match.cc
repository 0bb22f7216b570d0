// SPDX-License-Identifier: Apache-2.0
// Match handles, and the reading of tokens.
#include <memory>
#include <string>
#include <utility>

#include "capi/handles.h"
#include "capi/struct_reader.h"

namespace kvstrata::capi {
namespace {

// Ranks of one model; more than that is a stray count.
constexpr uint64_t kMaxMatches = 65536;

}  // namespace

absl::StatusOr<TokenInput> ReadTokens(const kvstrata_tokens* given, const char* field) {
  TokenInput out;
  const absl::StatusOr<kvstrata_tokens> tokens = ReadStruct<kvstrata_tokens>(given, field);
  if (!tokens.ok()) return tokens.status();
  if (tokens->ids == nullptr && tokens->count > 0) {
    return base::InvalidArgument(std::string(field) + ".ids", "NULL with a count");
  }
  if (tokens->count > engine::kMaxTokens) {
    return base::InvalidArgument(std::string(field) + ".count", std::to_string(tokens->count) + " > 2^31");
  }
  out.ids = {tokens->ids, tokens->count};
  const std::string keys_field = std::string(field) + ".extra_keys";
  const absl::StatusOr<std::vector<kvstrata_extra_key>> keys = ReadArray<kvstrata_extra_key>(
      tokens->extra_keys, tokens->extra_key_count, tokens->extra_key_stride, engine::kMaxTokens, keys_field);
  if (!keys.ok()) return keys.status();
  for (size_t i = 0; i < keys->size(); ++i) {
    const kvstrata_extra_key& key = (*keys)[i];
    const std::string name = keys_field + "[" + std::to_string(i) + "]";
    if (key.bytes == nullptr && key.size > 0) return base::InvalidArgument(name + ".bytes", "NULL with a size");
    if (key.size > engine::kMaxExtraKeyBytes) {
      return base::InvalidArgument(name + ".size", std::to_string(key.size) + " > 1024");
    }
    out.keys.push_back({key.position, key.type, std::string(static_cast<const char*>(key.bytes), key.size)});
  }
  return out;
}

absl::StatusOr<engine::Prompt> ReadPrompt(const kvstrata_tokens* given, const char* field) {
  absl::StatusOr<TokenInput> input = ReadTokens(given, field);
  if (!input.ok()) return input.status();
  engine::Prompt prompt;
  if (absl::Status status = prompt.Append(input->ids, std::move(input->keys)); !status.ok()) return status;
  return prompt;
}

namespace {

absl::Status Lookup(kvstrata_namespace* name_space, const kvstrata_tokens* tokens, const kvstrata_lookup_options* given,
                    kvstrata_match** out) {
  if (name_space == nullptr) return base::InvalidArgument("name_space", "NULL");
  if (out == nullptr) return base::InvalidArgument("out", "NULL");
  const absl::StatusOr<kvstrata_lookup_options> options = ReadOptionalStruct<kvstrata_lookup_options>(given, "options");
  if (!options.ok()) return options.status();
  constexpr uint32_t kKnown = KVSTRATA_LOOKUP_PEEK | KVSTRATA_LOOKUP_NO_LEASE;
  if ((options->flags & ~kKnown) != 0) return base::InvalidArgument("options.flags", std::to_string(options->flags));
  absl::StatusOr<engine::Prompt> prompt = ReadPrompt(tokens, "tokens");
  if (!prompt.ok()) return prompt.status();
  engine::LookupOptions lookup;
  lookup.peek = (options->flags & KVSTRATA_LOOKUP_PEEK) != 0;
  lookup.no_lease = (options->flags & KVSTRATA_LOOKUP_NO_LEASE) != 0;
  lookup.held_tokens = options->held_tokens;
  lookup.allowed_modes = options->allowed_modes;
  lookup.restart_multiple = options->restart_multiple;
  lookup.min_gain_tokens = options->min_gain_tokens;
  lookup.prefill_tokens_per_second = options->prefill_tokens_per_second;
  lookup.storage_bytes_per_second = options->storage_bytes_per_second;
  lookup.lease_ms = options->lease_ms;
  absl::StatusOr<std::unique_ptr<engine::Match>> match =
      engine::Match::Lookup(name_space->cache, name_space->name_space, *std::move(prompt), lookup);
  if (!match.ok()) return match.status();
  *out = new kvstrata_match{*std::move(match)};
  return absl::OkStatus();
}

kvstrata_match_info InfoOf(const engine::Match& match) {
  const kvstrata::core::plan::Plan& plan = match.plan();
  const engine::MatchState& state = *match.state();
  kvstrata_match_info info{};
  info.mode = static_cast<int32_t>(plan.mode);
  info.reason = static_cast<int32_t>(plan.reason);
  info.leased = match.leased() ? 1 : 0;
  info.prompt_tokens = state.prompt.size();
  info.matched_tokens = state.name_space->BlockEnd(state.matched_blocks);
  info.usable_tokens = plan.usable_tokens;
  info.replay_from = plan.replay_from;
  info.write_floor = plan.write_floor;
  info.snapshot_position = plan.snapshot.has_value() ? plan.snapshot->position : engine::kNoPosition;
  info.held_tokens = state.options.held_tokens;
  info.reused_tokens = plan.reused_tokens;
  info.replayed_tokens = plan.replayed_tokens;
  info.recomputed_tokens = plan.recomputed_tokens;
  info.bytes_to_read = plan.bytes_to_read;
  info.restore_seconds = plan.restore_seconds;
  info.recompute_seconds = plan.recompute_seconds;
  return info;
}

}  // namespace
}  // namespace kvstrata::capi

using namespace kvstrata::capi;  // the ABI's functions are the only names in this file outside it

extern "C" {

kvstrata_status kvstrata_lookup(kvstrata_namespace* name_space, const kvstrata_tokens* tokens,
                                const kvstrata_lookup_options* options, kvstrata_match** out, kvstrata_error* error) {
  return Fence(error, [&] { return Lookup(name_space, tokens, options, out); });
}

void kvstrata_match_destroy(kvstrata_match* match) {
  // A forked child must not touch the parent's locks; what it inherited it leaves alone.
  if (match == nullptr || !match->match->state()->cache->InOwnerProcess()) return;
  delete match;
}

kvstrata_status kvstrata_match_get_info(const kvstrata_match* match, kvstrata_match_info* out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (match == nullptr) return base::InvalidArgument("match", "NULL");
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    if (absl::Status status = CheckProcess(*match->match->state()->cache); !status.ok()) return status;
    WriteStruct(InfoOf(*match->match), out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_match_renew(kvstrata_match* match, uint64_t lease_ms, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (match == nullptr) return base::InvalidArgument("match", "NULL");
    return match->match->Renew(lease_ms);
  });
}

kvstrata_status kvstrata_match_limit(kvstrata_match* match, uint64_t max_usable_tokens, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (match == nullptr) return base::InvalidArgument("match", "NULL");
    return match->match->Limit(max_usable_tokens);
  });
}

kvstrata_status kvstrata_match_agree(kvstrata_match* const* matches, uint64_t count, uint64_t* out_usable_tokens,
                                     kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (matches == nullptr) return base::InvalidArgument("matches", "NULL");
    if (out_usable_tokens == nullptr) return base::InvalidArgument("out_usable_tokens", "NULL");
    if (count > kMaxMatches) return base::InvalidArgument("count", std::to_string(count) + " > 65536");
    std::vector<engine::Match*> list;
    for (uint64_t i = 0; i < count; ++i) {
      if (matches[i] == nullptr) return base::InvalidArgument("matches[" + std::to_string(i) + "]", "NULL");
      list.push_back(matches[i]->match.get());
    }
    const absl::StatusOr<uint64_t> usable = engine::Agree(list);
    if (usable.ok()) *out_usable_tokens = *usable;
    return usable.status();
  });
}

kvstrata_status kvstrata_match_first_difference(kvstrata_match* match, uint64_t* out_position, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (match == nullptr) return base::InvalidArgument("match", "NULL");
    if (out_position == nullptr) return base::InvalidArgument("out_position", "NULL");
    const absl::StatusOr<uint64_t> position = match->match->FirstDifference();
    if (position.ok()) *out_position = *position;
    return position.status();
  });
}

}  // extern "C"
