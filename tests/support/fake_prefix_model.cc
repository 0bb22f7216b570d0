// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_prefix_model.h"

#include <algorithm>
#include <numeric>

namespace kvstrata::test {
namespace {

bool Allows(const kvstrata_lookup_options& options, int32_t mode) {
  const uint32_t modes = options.allowed_modes == 0 ? 1u << KVSTRATA_MODE_SNAPSHOT : options.allowed_modes;
  return (modes & (1u << mode)) != 0;
}

}  // namespace

PrefixModel::PrefixModel(const ModelLayout& layout)
    : block_tokens_(layout.info.block_tokens),
      has_rows_(layout.has_rows),
      has_state_(std::any_of(layout.streams.begin(), layout.streams.end(),
                             [](const kvstrata_stream& stream) { return !IsRows(stream); })),
      exact_replay_tokens_(layout.info.replay_mode == KVSTRATA_REPLAY_NONE ? 0 : layout.info.exact_replay_tokens) {}

void PrefixModel::AddBlocks(const Sequence& sequence, uint64_t length) {
  for (uint64_t end = block_tokens_; end <= length; end += block_tokens_) blocks_.insert(sequence.Digest(end));
}

void PrefixModel::AddSnapshot(const Sequence& sequence, uint64_t position) {
  snapshots_.insert({position, sequence.Digest(position)});
}

void PrefixModel::Merge(const PrefixModel& other) {
  blocks_.insert(other.blocks_.begin(), other.blocks_.end());
  snapshots_.insert(other.snapshots_.begin(), other.snapshots_.end());
}

void PrefixModel::Clear() {
  blocks_.clear();
  snapshots_.clear();
}

void PrefixModel::Offer(Expectation candidate, const kvstrata_lookup_options& options, Expectation* best) const {
  if (candidate.replay_from <= options.held_tokens) return;
  if (candidate.replay_from - options.held_tokens < options.min_gain_tokens) return;
  if (candidate.replay_from < best->replay_from) return;
  if (candidate.replay_from == best->replay_from && candidate.usable <= best->usable) return;
  candidate.matched = best->matched;
  *best = candidate;
}

Expectation PrefixModel::Expect(const Sequence& prompt, const kvstrata_lookup_options& options) const {
  Expectation best;
  if (prompt.size() == 0) return best;
  const uint64_t cap = prompt.size() - 1;
  while (best.matched + block_tokens_ <= cap && HasBlock(prompt, best.matched + block_tokens_)) {
    best.matched += block_tokens_;
  }
  const uint64_t restart = std::max<uint64_t>(1, options.restart_multiple);
  const uint64_t grid = std::lcm(restart, block_tokens_);
  const uint64_t rows = has_rows_ ? best.matched / grid * grid : 0;
  if (!has_state_) {
    if (Allows(options, KVSTRATA_MODE_SNAPSHOT))
      Offer({0, rows, rows, UINT64_MAX, KVSTRATA_MODE_SNAPSHOT}, options, &best);
    return best;
  }
  for (const auto& [position, digest] : snapshots_) {
    if (position > cap || position % restart != 0 || digest != prompt.Digest(position)) continue;
    if (position / block_tokens_ * block_tokens_ > best.matched) continue;
    if (Allows(options, KVSTRATA_MODE_SNAPSHOT)) {
      Offer({0, position, position, position, KVSTRATA_MODE_SNAPSHOT}, options, &best);
    }
    if (position < rows && Allows(options, KVSTRATA_MODE_SNAPSHOT_REPLAY)) {
      Offer({0, rows, position, position, KVSTRATA_MODE_SNAPSHOT_REPLAY}, options, &best);
    }
  }
  if (exact_replay_tokens_ != 0 && rows > exact_replay_tokens_ && Allows(options, KVSTRATA_MODE_FULL_REPLAY)) {
    const uint64_t from = (rows - exact_replay_tokens_) / restart * restart;
    Offer({0, rows, from, UINT64_MAX, KVSTRATA_MODE_FULL_REPLAY}, options, &best);
  }
  return best;
}

}  // namespace kvstrata::test
