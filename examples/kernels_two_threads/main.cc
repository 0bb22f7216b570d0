// SPDX-License-Identifier: Apache-2.0
// Cuts kernel work between two threads: the keys of an index are compressed from a prompt, then scored, once by one
// thread and once by two, and the bytes are compared. Kernels make no threads of their own; kernels.h says where work
// may be cut.
//
//   kernels_two_threads [TOKENS]     a multiple of 8, 32768 if not given
//
// Owns all its buffers; a thread writes only rows (compress) or columns (index_scores) of its own.
#include <kvstrata/kernels.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kRatio = 4;  // tokens per key
constexpr uint32_t kWidth = 128;
constexpr uint32_t kRope = 64;
constexpr uint32_t kHeads = 64;
constexpr uint64_t kQueries = 4;            // scored together, at the end of the prompt
constexpr uint64_t kChannels = 2 * kWidth;  // both halves: blocks overlap
constexpr uint64_t kKeyBytes = 68;          // V4_INDEX_FP4: 64 bytes of codes, 4 of scales

void Check(int32_t status, const char* what) {
  if (status == KVSTRATA_KERNELS_OK) return;
  std::fprintf(stderr, "%s: status %d\n", what, status);
  std::exit(1);
}

std::vector<float> Noise(uint64_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out(count);
  for (float& value : out) value = scale * (static_cast<float>(random()) * 0x1p-31f - 1.0f);
  return out;
}

struct Prompt {
  explicit Prompt(uint64_t count)
      : tokens(count),
        values(Noise(count * kChannels, 1.0f, 1)),
        gates(Noise(count * kChannels, 3.0f, 2)),
        bias(Noise(kRatio * kChannels, 1.0f, 3)),
        weight(kWidth, 1.0f),
        frequencies(kRope / 2),
        queries(Noise(kQueries * kHeads * kWidth, 1.0f, 4)),
        head_weights(Noise(kQueries * kHeads, 1.0f, 5)) {
    for (uint32_t k = 0; k < kRope / 2; ++k) {
      frequencies[k] = static_cast<float>(std::pow(160000.0, -2.0 * k / kRope));
    }
  }
  uint64_t keys() const { return tokens / kRatio; }

  uint64_t tokens;
  std::vector<float> values, gates, bias, weight, frequencies, queries, head_weights;
};

// A compressor's state. Gates of minus infinity and values of 0 weigh nothing: so it can begin anywhere.
struct State {
  State()
      : prev_values(kRatio * kWidth),
        prev_gates(kRatio * kWidth, -std::numeric_limits<float>::infinity()),
        open_values(kRatio * kChannels),
        open_gates(kRatio * kChannels) {}
  std::vector<float> prev_values, prev_gates, open_values, open_gates;
};

// Tokens begin .. end-1 into the keys that they complete; `rows` is where the first of those goes.
void Compress(const kvstrata_kernels& k, const Prompt& p, State& state, uint64_t begin, uint64_t end, uint8_t* rows) {
  kvstrata_compress_args a{};
  a.struct_size = sizeof a;
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.pool_flags = KVSTRATA_KERNELS_POOL_OVERLAP;
  a.emit_flags = KVSTRATA_KERNELS_EMIT_HADAMARD;
  a.ratio = kRatio;
  a.width = kWidth;
  a.rope_dims = kRope;
  a.format = KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4;
  a.input_type = KVSTRATA_KERNELS_F32;
  a.output_type = KVSTRATA_KERNELS_PACKED;
  a.eps = 1e-6f;
  a.position = begin;
  a.tokens = end - begin;
  a.values = p.values.data() + begin * kChannels;
  a.gates = p.gates.data() + begin * kChannels;
  a.ape = p.bias.data();
  a.prev_values = state.prev_values.data();
  a.prev_gates = state.prev_gates.data();
  a.open_values = state.open_values.data();
  a.open_gates = state.open_gates.data();
  a.norm_weight = p.weight.data();
  a.frequencies = p.frequencies.data();
  a.packed.codes = rows;
  a.packed.scales = rows + kKeyBytes - 4;
  a.packed.code_stride_bytes = a.packed.scale_stride_bytes = kKeyBytes;
  a.entry_capacity = (end - begin) / kRatio;
  uint64_t bytes = 0;
  Check(k.compress_workspace_bytes(&a, &bytes), "compress_workspace_bytes");
  std::vector<float> workspace(bytes / sizeof(float) + 1);
  a.workspace = workspace.data();
  a.workspace_bytes = bytes;
  Check(k.compress(&a, nullptr), "compress");
}

// Keys first_key .. end_key-1. A part that does not begin at the prompt's first token runs the block before it too,
// into a row that is thrown away: it needs that block's half of its own first key.
void CompressPart(const kvstrata_kernels& k, const Prompt& p, uint64_t first_key, uint64_t end_key, uint8_t* index) {
  State state;
  if (first_key != 0) {
    uint8_t discarded[kKeyBytes];
    Compress(k, p, state, (first_key - 1) * kRatio, first_key * kRatio, discarded);
  }
  Compress(k, p, state, first_key * kRatio, end_key * kRatio, index + first_key * kKeyBytes);
}

// Scores of keys first_key .. end_key-1: columns of the score matrix.
void ScorePart(const kvstrata_kernels& k, const Prompt& p, uint8_t* index, uint64_t first_key, uint64_t end_key,
               float* scores) {
  kvstrata_index_scores_args a{};
  a.struct_size = sizeof a;
  a.heads = kHeads;
  a.width = kWidth;
  a.ratio = kRatio;
  a.tokens = kQueries;
  a.first_position = p.tokens - kQueries;
  a.first_entry = first_key;
  a.entries = end_key - first_key;
  a.queries = p.queries.data();
  a.query_type = KVSTRATA_KERNELS_F32;
  a.key_format = KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4;
  a.packed_keys.codes = index + first_key * kKeyBytes;
  a.packed_keys.scales = a.packed_keys.codes + kKeyBytes - 4;
  a.packed_keys.code_stride_bytes = a.packed_keys.scale_stride_bytes = kKeyBytes;
  a.weights = p.head_weights.data();
  a.scores = scores + first_key;
  a.score_stride = p.keys();
  uint64_t bytes = 0;
  Check(k.index_scores_workspace_bytes(&a, &bytes), "index_scores_workspace_bytes");
  std::vector<float> workspace(bytes / sizeof(float) + 1);
  a.workspace = workspace.data();
  a.workspace_bytes = bytes;
  Check(k.index_scores(&a, nullptr), "index_scores");
}

struct Result {
  std::vector<uint8_t> index;
  std::vector<float> scores;
  double compress_ms = 0;
  double score_ms = 0;
};

double Milliseconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

// part(first, end) for the keys of each half, in two threads, or for all of them in this one.
template <typename Part>
void Split(uint64_t keys, bool two, const Part& part) {
  if (!two) return part(0, keys);
  std::thread second([&] { part(keys / 2, keys); });
  part(0, keys / 2);
  second.join();
}

Result Run(const kvstrata_kernels& k, const Prompt& p, bool two) {
  Result r;
  r.index.resize(p.keys() * kKeyBytes);
  r.scores.resize(kQueries * p.keys());
  auto begin = std::chrono::steady_clock::now();
  Split(p.keys(), two, [&](uint64_t first, uint64_t end) { CompressPart(k, p, first, end, r.index.data()); });
  r.compress_ms = Milliseconds(begin);
  begin = std::chrono::steady_clock::now();
  Split(p.keys(), two,
        [&](uint64_t first, uint64_t end) { ScorePart(k, p, r.index.data(), first, end, r.scores.data()); });
  r.score_ms = Milliseconds(begin);
  return r;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t tokens = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 32768;
  if (tokens == 0 || tokens % (2 * kRatio) != 0 || tokens > (uint64_t{1} << 24)) {
    std::fprintf(stderr, "usage: kernels_two_threads [TOKENS], a multiple of %u up to 2^24\n", 2 * kRatio);
    return 1;
  }
  const kvstrata_kernels& k = *kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_AUTO);
  const Prompt prompt(tokens);
  const Result one = Run(k, prompt, false);
  const Result two = Run(k, prompt, true);
  const bool same = one.index == two.index &&
                    std::memcmp(one.scores.data(), two.scores.data(), one.scores.size() * sizeof(float)) == 0;
  std::printf("%s, %llu tokens: compress %.2f ms, on two threads %.2f ms; score %.2f ms, on two threads %.2f ms; %s\n",
              k.name, static_cast<unsigned long long>(tokens), one.compress_ms, two.compress_ms, one.score_ms,
              two.score_ms, same ? "the same bytes" : "DIFFERENT bytes");
  return same ? 0 : 1;
}
