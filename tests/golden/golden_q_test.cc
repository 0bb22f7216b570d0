// SPDX-License-Identifier: Apache-2.0
// Our kernels against an independent reading of numeric profile Q, as trained (generate/generate_q.py says how the
// vectors are made): on every level, codes and scale bytes exactly, pooled rows, scores and outputs within the bounds
// that the vectors bring along.
//
// Codes can be compared exactly although levels sum in different orders, because the inputs were chosen so that no
// rounding to bf16 lies within fp32's errors of a tie.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/golden/vector_file.h"
#include "tests/support/catch.hpp"
#include "tests/unit/kernels/kernel_test.h"

namespace kvstrata::golden {
namespace {

using kernels::test::Args;
using kernels::test::Levels;
using kernels::test::SameBits;

const VectorFile& File() {
  static const VectorFile* file = [] {
    std::string error;
    std::optional<VectorFile> loaded = VectorFile::Load(std::string(KVSTRATA_GOLDEN_VECTORS) + "/q.kvg", error);
    INFO(error);
    REQUIRE(loaded);
    return new VectorFile(std::move(*loaded));  // lives as long as the program
  }();
  return *file;
}

const Record& Get(const std::string& name) {
  INFO(name);
  const Record* record = File().Find(name);
  REQUIRE(record != nullptr);
  return *record;
}

std::vector<uint8_t> Bytes(const std::string& name) {
  const std::vector<int32_t>& words = Get(name).ints;
  std::vector<uint8_t> bytes(words.size() * 4);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

void Ok(int32_t status) { REQUIRE(status == KVSTRATA_KERNELS_OK); }

// ------------------------------------------------------------------------------------------------- packed rows

// Rows one after the other: codes, rope, scales.
struct PackedRows {
  kvstrata_packed_shape shape;
  std::vector<uint8_t> bytes;

  PackedRows(int32_t format, uint32_t width, uint64_t rows) : shape(Args<kvstrata_packed_shape>()) {
    shape.format = format;
    shape.width = width;
    shape.rope_dims = format == KVSTRATA_KERNELS_FORMAT_V4_ROW ? 64 : 0;
    Ok(kernels::test::Reference().packed_shape(&shape));
    bytes.assign(rows * shape.row_bytes, 0xEE);
  }
  uint64_t rows() const { return bytes.size() / shape.row_bytes; }
  kvstrata_packed_planes Planes(uint64_t row = 0) {
    uint8_t* begin = bytes.data() + row * shape.row_bytes;
    return {begin,
            shape.row_bytes,
            begin + shape.code_bytes,
            shape.row_bytes,
            begin + shape.code_bytes + shape.rope_bytes,
            shape.row_bytes};
  }
};

PackedRows Pack(const kvstrata_kernels& k, int32_t format, uint32_t width, const std::vector<float>& rows) {
  PackedRows packed(format, width, rows.size() / width);
  const kvstrata_packed_planes planes = packed.Planes();
  kvstrata_pack_rows_args a = Args<kvstrata_pack_rows_args>();
  a.format = format;
  a.width = width;
  a.rope_dims = packed.shape.rope_dims;
  a.rows = packed.rows();
  a.source = rows.data();
  a.codes = planes.codes;
  a.code_stride_bytes = planes.code_stride_bytes;
  a.rope = planes.rope;
  a.rope_stride_bytes = planes.rope_stride_bytes;
  a.scales = planes.scales;
  a.scale_stride_bytes = planes.scale_stride_bytes;
  Ok(k.pack_rows(&a, nullptr));
  return packed;
}

std::vector<float> Unpack(const kvstrata_kernels& k, PackedRows& packed) {
  const kvstrata_packed_planes planes = packed.Planes();
  std::vector<float> rows(packed.rows() * packed.shape.width);
  kvstrata_unpack_rows_args a = Args<kvstrata_unpack_rows_args>();
  a.format = packed.shape.format;
  a.width = packed.shape.width;
  a.rope_dims = packed.shape.rope_dims;
  a.rows = packed.rows();
  a.codes = planes.codes;
  a.code_stride_bytes = planes.code_stride_bytes;
  a.rope = planes.rope;
  a.rope_stride_bytes = planes.rope_stride_bytes;
  a.scales = planes.scales;
  a.scale_stride_bytes = planes.scale_stride_bytes;
  a.destination = rows.data();
  Ok(k.unpack_rows(&a, nullptr));
  return rows;
}

// The rows of NAME.source as this level packs them, which must be NAME.packed.
PackedRows PackSource(const kvstrata_kernels& k, const std::string& name, int32_t format, uint32_t width) {
  PackedRows packed = Pack(k, format, width, Get(name + ".source").floats);
  INFO(name);
  CHECK(packed.bytes == Bytes(name + ".packed"));
  return packed;
}

std::vector<uint16_t> ToBf16Bits(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(kernels::test::ToBf16(values[i])) >> 16);
  }
  return bits;
}

uint64_t BeyondBound(const std::vector<float>& got, const std::vector<float>& want, const std::vector<float>& bound) {
  REQUIRE(got.size() == want.size());
  REQUIRE(got.size() == bound.size());
  uint64_t beyond = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = std::isinf(want[i]) ? got[i] == want[i] : std::fabs(got[i] - want[i]) <= bound[i];
    if (!same) ++beyond;
  }
  return beyond;
}

// ---------------------------------------------------------------------------------------------------- compressors

struct Chain {
  explicit Chain(const std::string& chain_name) : name(chain_name) {
    const std::vector<int32_t>& meta = Get(name + ".meta").ints;
    REQUIRE(meta.size() == 10);
    ratio = static_cast<uint32_t>(meta[0]);
    width = static_cast<uint32_t>(meta[1]);
    overlap = meta[2] != 0;
    format = meta[3];
    hadamard = meta[4] != 0;
    eps = meta[5] != 0 ? 1e-20f : 1e-6f;
    if (meta[6] != 0) ape = Get(name + ".ape").floats;
    start = static_cast<uint64_t>(meta[8]);
    compared = static_cast<uint64_t>(meta[9]);
    const std::vector<int32_t>& draws = Get(name + ".draws").ints;
    for (size_t block = 0; block < draws.size(); ++block) {
      const std::string prefix = name + "." + std::to_string(block) + "." + std::to_string(draws[block]);
      Append(values, Get(prefix + ".values").floats);
      std::vector<float> block_gates = Get(prefix + ".gates").floats;
      if (meta[7] != 0) Thin(block_gates);
      Append(gates, block_gates);
    }
  }
  uint64_t channels() const { return (overlap ? 2 : 1) * uint64_t{width}; }
  uint64_t tokens() const { return values.size() / channels(); }
  uint64_t entries() const { return tokens() / ratio; }
  uint64_t skipped() const { return entries() - compared; }  // made of a block that is not there

  std::string name;
  uint32_t ratio, width;
  bool overlap, hadamard;
  int32_t format;
  float eps;
  uint64_t start, compared;
  std::vector<float> values, gates, ape;

 private:
  static void Append(std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  // All but 8 of 128 gates of a channel so low that their weight is 0 (draw_block of the generator).
  void Thin(std::vector<float>& block) const {
    for (uint64_t i = 0; i < block.size(); ++i) {
      if ((i / width * 37 + i % width * 11) % 16 != 0) block[i] -= 256;
    }
  }
};

std::vector<std::string> ChainNames() {
  return {"csa", "csa_far", "key_fp4", "key_fp8", "hca", "window", "v41_main", "v41_key", "v41_window"};
}

struct State {
  explicit State(const Chain& c)
      : prev_values(c.ratio * c.width),
        prev_gates(c.ratio * c.width),
        open_values(c.ratio * c.channels()),
        open_gates(c.ratio * c.channels()) {}

  std::vector<float> prev_values, prev_gates, open_values, open_gates;
};

kvstrata_compress_args CompressArgs(const Chain& c, State& state, uint64_t done, uint64_t piece) {
  kvstrata_compress_args a = Args<kvstrata_compress_args>();
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.pool_flags = c.overlap ? KVSTRATA_KERNELS_POOL_OVERLAP : 0;
  a.emit_flags = c.hadamard ? KVSTRATA_KERNELS_EMIT_HADAMARD : 0;
  a.ratio = c.ratio;
  a.width = c.width;
  a.rope_dims = 64;
  a.format = c.format;
  a.eps = c.eps;
  a.position = c.start + done;
  a.tokens = piece;
  a.values = c.values.data() + done * c.channels();
  a.gates = c.gates.data() + done * c.channels();
  a.ape = c.ape.empty() ? nullptr : c.ape.data();
  a.prev_values = state.prev_values.data();
  a.prev_gates = state.prev_gates.data();
  a.open_values = state.open_values.data();
  a.open_gates = state.open_gates.data();
  a.norm_weight = Get(c.name + ".norm").floats.data();
  a.frequencies = Get("frequencies").floats.data();
  a.entry_capacity = c.entries();
  return a;
}

void Compress(const kvstrata_kernels& k, kvstrata_compress_args a) {
  Ok(k.compress_workspace_bytes(&a, &a.workspace_bytes));
  std::vector<float> workspace(a.workspace_bytes / sizeof(float) + 1);
  a.workspace = workspace.data();
  Ok(k.compress(&a, nullptr));
}

// The chain in calls of `piece` tokens; its packed rows without those that are not compared.
std::vector<uint8_t> CompressPacked(const kvstrata_kernels& k, const Chain& c, uint64_t piece) {
  State state(c);
  PackedRows packed(c.format, c.width, c.entries());
  for (uint64_t done = 0; done < c.tokens(); done += piece) {
    kvstrata_compress_args a = CompressArgs(c, state, done, std::min(piece, c.tokens() - done));
    a.output_type = KVSTRATA_KERNELS_PACKED;
    a.packed = packed.Planes(done / c.ratio);
    Compress(k, a);
  }
  return {packed.bytes.begin() + static_cast<ptrdiff_t>(c.skipped() * packed.shape.row_bytes), packed.bytes.end()};
}

std::vector<float> CompressFloats(const kvstrata_kernels& k, const Chain& c) {
  State state(c);
  std::vector<float> rows(c.entries() * c.width);
  kvstrata_compress_args a = CompressArgs(c, state, 0, c.tokens());
  a.entries = rows.data();
  Compress(k, a);
  return {rows.begin() + static_cast<ptrdiff_t>(c.skipped() * c.width), rows.end()};
}

std::vector<float> Pooled(const kvstrata_kernels& k, const Chain& c) {
  State state(c);
  std::vector<float> rows(c.entries() * c.width);
  const kvstrata_compress_args whole = CompressArgs(c, state, 0, c.tokens());
  kvstrata_pool_args a = Args<kvstrata_pool_args>();
  a.flags = whole.pool_flags;
  a.ratio = c.ratio;
  a.width = c.width;
  a.position = whole.position;
  a.tokens = whole.tokens;
  a.values = whole.values;
  a.gates = whole.gates;
  a.ape = whole.ape;
  a.prev_values = whole.prev_values;
  a.prev_gates = whole.prev_gates;
  a.open_values = whole.open_values;
  a.open_gates = whole.open_gates;
  a.entries = rows.data();
  a.entry_capacity = c.entries();
  Ok((c.overlap ? k.csa_pool : k.hca_pool)(&a, nullptr));
  return {rows.begin() + static_cast<ptrdiff_t>(c.skipped() * c.width), rows.end()};
}

// ---------------------------------------------------------------------------------------------- scores, attention

std::vector<float> ScoresOf(const kvstrata_kernels& k, const std::vector<float>& queries, int32_t query_type,
                            PackedRows& keys) {
  const Record& weights = Get("scores.weights");
  const std::vector<uint16_t> narrow = ToBf16Bits(queries);
  kvstrata_index_scores_args a = Args<kvstrata_index_scores_args>();
  a.heads = static_cast<uint32_t>(weights.shape.at(1));
  a.width = 128;
  a.ratio = 4;
  a.tokens = weights.shape.at(0);
  a.entries = keys.rows();
  a.first_position = 4 * keys.rows() - 2;
  a.query_type = query_type;
  a.queries = query_type == KVSTRATA_KERNELS_F32 ? static_cast<const void*>(queries.data()) : narrow.data();
  a.key_format = keys.shape.format;
  a.packed_keys = keys.Planes();
  a.weights = weights.floats.data();
  std::vector<float> scores(a.tokens * a.entries);
  a.scores = scores.data();
  Ok(k.index_scores_workspace_bytes(&a, &a.workspace_bytes));
  std::vector<float> workspace(a.workspace_bytes / sizeof(float) + 1);
  a.workspace = workspace.data();
  Ok(k.index_scores(&a, nullptr));
  return scores;
}

std::vector<int32_t> PicksOf(const kvstrata_kernels& k, uint64_t row) {
  const std::vector<int32_t>& meta = Get("topk.meta").ints;
  kvstrata_topk_args a = Args<kvstrata_topk_args>();
  a.entries = static_cast<uint64_t>(meta.at(0));
  a.ratio = static_cast<uint32_t>(meta.at(1));
  a.k = static_cast<uint32_t>(meta.at(2));
  a.tokens = 1;
  a.first_position = static_cast<uint64_t>(meta.at(3 + row)) * a.ratio;
  a.scores = Get("topk.rows").floats.data() + row * a.entries;
  std::vector<int32_t> picks(a.k);
  a.indices = picks.data();
  Ok(k.topk_workspace_bytes(&a, &a.workspace_bytes));
  std::vector<float> workspace(a.workspace_bytes / sizeof(float) + 1);
  a.workspace = workspace.data();
  Ok(k.topk(&a, nullptr));
  return picks;
}

// One call for all tokens and heads; the output in floats.
std::vector<float> AttentionOf(const kvstrata_kernels& k, const std::string& name, int32_t query_type,
                               int32_t output_type) {
  const std::vector<int32_t>& meta = Get(name + ".meta").ints;
  const auto number = [&](size_t i) { return static_cast<uint32_t>(meta.at(i)); };
  PackedRows window = PackSource(k, name + ".window", meta.at(8), number(2));
  PackedRows entries = PackSource(k, name + ".entries", meta.at(9), number(2));
  const std::vector<uint16_t> narrow = ToBf16Bits(Get(name + ".queries").floats);
  std::vector<float> wide(narrow.size());
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = std::bit_cast<float>(uint32_t{narrow[i]} << 16);
  kvstrata_attention_args a = Args<kvstrata_attention_args>();
  a.profile = KVSTRATA_KERNELS_PROFILE_Q;
  a.flags = KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE;
  a.tokens = number(0);
  a.heads = number(1);
  a.width = number(2);
  a.rope_dims = 64;
  a.window = number(3);
  a.ratio = number(4);
  a.entry_count = number(5);
  a.pick_count = number(6);
  a.picks = a.pick_count != 0 ? Get(name + ".picks").ints.data() : nullptr;
  a.first_position = number(7);
  a.window_first = a.first_position + 1 - a.window;
  a.window_rows = window.rows();
  a.window_format = window.shape.format;
  a.packed_window = window.Planes();
  a.entry_format = entries.shape.format;
  a.packed_entries = entries.Planes();
  a.query_type = query_type;
  a.queries = query_type == KVSTRATA_KERNELS_F32 ? static_cast<const void*>(wide.data()) : narrow.data();
  a.sinks = Get(name + ".sinks").floats.data();
  a.frequencies = Get("frequencies").floats.data();
  std::vector<float> output(wide.size());
  std::vector<uint16_t> narrow_output(wide.size());
  a.output_type = output_type;
  a.output = output_type == KVSTRATA_KERNELS_F32 ? static_cast<void*>(output.data()) : narrow_output.data();
  Ok(k.attention_workspace_bytes(&a, &a.workspace_bytes));
  std::vector<float> workspace(a.workspace_bytes / sizeof(float) + 1);
  a.workspace = workspace.data();
  Ok(k.attention(&a, nullptr));
  if (output_type == KVSTRATA_KERNELS_F32) return output;
  for (size_t i = 0; i < output.size(); ++i) output[i] = std::bit_cast<float>(uint32_t{narrow_output[i]} << 16);
  return output;
}

// Heads whose differences are larger, in the root mean square, than independent roundings make them.
uint64_t NoisyHeads(const std::vector<float>& got, const std::vector<float>& want, const std::vector<float>& bound) {
  const size_t width = got.size() / bound.size();
  uint64_t noisy = 0;
  for (size_t head = 0; head < bound.size(); ++head) {
    double squares = 0;
    for (size_t i = head * width; i < (head + 1) * width; ++i) squares += std::pow(double{got[i]} - want[i], 2);
    if (!(std::sqrt(squares / static_cast<double>(width)) <= bound[head])) ++noisy;
  }
  return noisy;
}

}  // namespace

TEST_CASE("profile Q: packed bytes of awkward rows") {
  const std::vector<std::pair<std::string, uint32_t>> formats = {{"v4_row", KVSTRATA_KERNELS_FORMAT_V4_ROW},
                                                                 {"v4_index_fp4", KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4},
                                                                 {"v4_index_fp8", KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8},
                                                                 {"v41_window", KVSTRATA_KERNELS_FORMAT_V41_WINDOW},
                                                                 {"v41_entry", KVSTRATA_KERNELS_FORMAT_V41_ENTRY}};
  for (const kvstrata_kernels* k : Levels()) {
    for (const auto& [name, format] : formats) {
      INFO(k->name << ", " << name);
      const Record& rows = Get("quantise." + name + ".rows");
      const PackedRows packed =
          Pack(*k, static_cast<int32_t>(format), static_cast<uint32_t>(rows.shape.at(1)), rows.floats);
      CHECK(packed.bytes == Bytes("quantise." + name + ".packed"));
    }
  }
}

TEST_CASE("profile Q: the compress frequencies") {
  const std::vector<float>& want = Get("frequencies").floats;
  for (const kvstrata_kernels* k : Levels()) {
    std::vector<float> got(want.size());
    kvstrata_rope_frequencies_args a = Args<kvstrata_rope_frequencies_args>();
    a.rope_dims = 64;
    a.theta = 160000;
    a.yarn_factor = 16;
    a.original_length = 65536;
    a.beta_fast = 32;
    a.beta_slow = 1;
    a.frequencies = got.data();
    Ok(k->rope_frequencies(&a, nullptr));
    // A power, a division, two products and a sum in fp32: six half ulps.
    for (size_t i = 0; i < want.size(); ++i) CHECK(std::fabs(got[i] - want[i]) <= 6 * 0x1p-24f * want[i]);
  }
}

TEST_CASE("profile Q: pooled rows") {
  for (const std::string& name : ChainNames()) {
    const Chain chain(name);
    for (const kvstrata_kernels* k : Levels()) {
      INFO(k->name << ", " << name);
      CHECK(BeyondBound(Pooled(*k, chain), Get(name + ".pooled").floats, Get(name + ".pooled_bound").floats) == 0);
    }
  }
}

TEST_CASE("profile Q: codes and scale bytes of compressors, in one call and in pieces") {
  for (const std::string& name : ChainNames()) {
    const Chain chain(name);
    const std::vector<uint8_t> want = Bytes(name + ".packed");
    for (const kvstrata_kernels* k : Levels()) {
      for (const uint64_t piece : {chain.tokens(), uint64_t{1}, uint64_t{3}, uint64_t{7}}) {
        INFO(k->name << ", " << name << ", pieces of " << piece);
        CHECK(CompressPacked(*k, chain, piece) == want);
      }
      // The bytes as an engine has them that packs before it rounds: now and then others, but the same floats.
      PackedRows direct(chain.format, chain.width, chain.compared);
      direct.bytes = Bytes(name + ".direct");
      INFO(k->name << ", " << name << ", floats");
      CHECK(SameBits(CompressFloats(*k, chain), Unpack(*k, direct)));
    }
  }
}

TEST_CASE("profile Q, control: another position, no Hadamard, no bias, another eps give other codes") {
  const kvstrata_kernels& k = *Levels().back();
  const auto differs = [&](const std::string& name, auto change) {
    Chain chain(name);
    change(chain);
    return CompressPacked(k, chain, chain.tokens()) != Bytes(name + ".packed");
  };
  CHECK_FALSE(differs("key_fp4", [](Chain&) {}));
  CHECK(differs("key_fp4", [](Chain& c) { c.hadamard = false; }));
  CHECK(differs("csa_far", [](Chain& c) { c.start += 4; }));
  CHECK(differs("hca", [](Chain& c) { c.ape.assign(c.ape.size(), 0.0f); }));
  CHECK(differs("window", [](Chain& c) { c.eps = 1e-2f; }));
}

TEST_CASE("profile Q: index scores of FP4 queries against packed keys") {
  for (const kvstrata_kernels* k : Levels()) {
    PackedRows queries = PackSource(*k, "scores.queries", KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4, 128);
    const std::vector<float> query_rows = Unpack(*k, queries);
    for (const auto& [name, format] : {std::pair{"scores.v4_index_fp4", KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4},
                                       std::pair{"scores.v4_index_fp8", KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8}}) {
      PackedRows keys = PackSource(*k, name, format, 128);
      for (const int32_t type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
        INFO(k->name << ", " << name << ", query type " << type);
        CHECK(BeyondBound(ScoresOf(*k, query_rows, type, keys), Get(std::string(name) + ".scores").floats,
                          Get(std::string(name) + ".bound").floats) == 0);
      }
    }
  }
}

TEST_CASE("profile Q: picks, ties and NaN included") {
  const Record& want = Get("topk.picks");
  for (const kvstrata_kernels* k : Levels()) {
    for (uint64_t row = 0; row < want.shape.at(0); ++row) {
      const auto begin = want.ints.begin() + static_cast<ptrdiff_t>(row * want.row());
      INFO(k->name << ", row " << row);
      CHECK(PicksOf(*k, row) == std::vector<int32_t>(begin, begin + static_cast<ptrdiff_t>(want.row())));
    }
  }
}

TEST_CASE("profile Q: attention over packed rows, rotated back") {
  for (const kvstrata_kernels* k : Levels()) {
    for (const std::string name : {"attention_csa", "attention_hca", "attention_v41"}) {
      for (const int32_t query_type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
        for (const int32_t output_type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
          INFO(k->name << ", " << name << ", queries " << query_type << ", output " << output_type);
          const std::vector<float> got = AttentionOf(*k, name, query_type, output_type);
          CHECK(BeyondBound(got, Get(name + ".output").floats, Get(name + ".bound").floats) == 0);
          CHECK(NoisyHeads(got, Get(name + ".output").floats, Get(name + ".root_mean_square").floats) == 0);
        }
      }
    }
  }
}

}  // namespace kvstrata::golden
