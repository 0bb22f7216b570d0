// SPDX-License-Identifier: Apache-2.0
// The table and the rules that hold for every function: size first, refused arguments, outputs untouched.
#include <array>

#include "tests/unit/kernels/kernel_test.h"

using namespace kvstrata::kernels::test;
namespace kernels = kvstrata::kernels;

namespace {

// Calls `visit(name, function, zeroed arguments)` for every function that takes an argument struct and a stream.
template <typename Visit>
void ForEachFunction(const kvstrata_kernels& k, Visit visit) {
  visit("pack_rows", k.pack_rows, Args<kvstrata_pack_rows_args>());
  visit("unpack_rows", k.unpack_rows, Args<kvstrata_unpack_rows_args>());
  visit("quantize_dequantize", k.quantize_dequantize, Args<kvstrata_quantize_args>());
  visit("f32_to_bf16", k.f32_to_bf16, Args<kvstrata_convert_args>());
  visit("bf16_to_f32", k.bf16_to_f32, Args<kvstrata_convert_args>());
  visit("bf16_round", k.bf16_round, Args<kvstrata_convert_args>());
  visit("hadamard", k.hadamard, Args<kvstrata_hadamard_args>());
  visit("rope_frequencies", k.rope_frequencies, Args<kvstrata_rope_frequencies_args>());
  visit("rope", k.rope, Args<kvstrata_rope_args>());
  visit("rms_norm", k.rms_norm, Args<kvstrata_rms_norm_args>());
  visit("csa_pool", k.csa_pool, Args<kvstrata_pool_args>());
  visit("hca_pool", k.hca_pool, Args<kvstrata_pool_args>());
  visit("emit_entries", k.emit_entries, Args<kvstrata_emit_entries_args>());
  visit("compress", k.compress, Args<kvstrata_compress_args>());
  visit("window_append", k.window_append, Args<kvstrata_window_args>());
  visit("window_import", k.window_import, Args<kvstrata_window_args>());
  visit("window_export", k.window_export, Args<kvstrata_window_args>());
  visit("index_scores", k.index_scores, Args<kvstrata_index_scores_args>());
  visit("topk", k.topk, Args<kvstrata_topk_args>());
  visit("attention", k.attention, Args<kvstrata_attention_args>());
  visit("gather_rows", k.gather_rows, Args<kvstrata_move_args>());
  visit("scatter_rows", k.scatter_rows, Args<kvstrata_move_args>());
  visit("project", k.project, Args<kvstrata_project_args>());
}

// Makes the scalars of an empty call valid: no rows, no tokens, no data pointers.
void MakeEmpty(kvstrata_pack_rows_args& a) { a.format = KVSTRATA_KERNELS_FORMAT_V4_ROW; }
void MakeEmpty(kvstrata_unpack_rows_args& a) { a.format = KVSTRATA_KERNELS_FORMAT_V4_ROW; }
void MakeEmpty(kvstrata_quantize_args& a) { a.format = KVSTRATA_KERNELS_FORMAT_V4_ROW; }
void MakeEmpty(kvstrata_convert_args&) {}
void MakeEmpty(kvstrata_hadamard_args& a) {
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.width = 128;
}
void MakeEmpty(kvstrata_rope_frequencies_args& a) { a.theta = 10000; }
void MakeEmpty(kvstrata_rope_args& a) {
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.width = 4;
  a.rope_dims = 4;
}
void MakeEmpty(kvstrata_rms_norm_args& a) {
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.width = 4;
}
void MakeEmpty(kvstrata_pool_args& a) {
  a.ratio = 4;
  a.width = 4;
}
void MakeEmpty(kvstrata_emit_entries_args& a) {
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.width = 4;
  a.ratio = 1;
}
void MakeEmpty(kvstrata_compress_args& a) {
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.width = 4;
  a.ratio = 4;
  static float workspace[4];
  a.workspace = workspace;
  a.workspace_bytes = sizeof workspace;
}
void MakeEmpty(kvstrata_window_args& a) {
  a.row_bytes = 4;
  a.capacity = 4;
}
void MakeEmpty(kvstrata_index_scores_args& a) {
  a.heads = 1;
  a.width = 4;
  a.ratio = 4;
}
void MakeEmpty(kvstrata_topk_args& a) {
  a.k = 1;
  a.ratio = 4;
}
void MakeEmpty(kvstrata_attention_args& a) {
  a.profile = KVSTRATA_KERNELS_PROFILE_F;
  a.heads = 1;
  a.width = 4;
  a.window = 4;
}
void MakeEmpty(kvstrata_move_args& a) {
  static constexpr kvstrata_segment kSegment = {0, 0, 4, 4};
  a.rows_per_page = 4;
  a.page_stride_bytes = 16;
  a.segments = &kSegment;
  a.segment_count = 1;
}
void MakeEmpty(kvstrata_project_args&) {}

}  // namespace

TEST_CASE("levels: the reference is always there, a level that is not there is NULL") {
  const kvstrata_kernels* reference = kernels::Get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  REQUIRE(reference != nullptr);
  CHECK(reference->struct_size == sizeof(kvstrata_kernels));
  CHECK(reference->level == KVSTRATA_KERNELS_LEVEL_REFERENCE);
  CHECK(std::string(reference->name) == "reference");
  CHECK(kernels::Get(KVSTRATA_KERNELS_LEVEL_AUTO) != nullptr);
  CHECK(kernels::Get(99) == nullptr);
  CHECK(kernels::Get(-1) == nullptr);
}

TEST_CASE("levels: the portable one is always there, CPU is the best of those there, each says what it is") {
  REQUIRE(kernels::Get(KVSTRATA_KERNELS_LEVEL_CPU_PORTABLE) != nullptr);
  const kvstrata_kernels* best = nullptr;
  for (const kvstrata_kernels* table : Levels()) {
    CHECK(table->struct_size == sizeof(kvstrata_kernels));
    CHECK(kernels::Get(static_cast<int32_t>(table->level)) == table);
    best = table;
  }
  if (std::getenv("KVSTRATA_KERNELS_MAX_LEVEL") != nullptr) return;  // a bound from outside: the next test's business
  CHECK(kernels::Get(KVSTRATA_KERNELS_LEVEL_CPU) == best);
  CHECK(kernels::Get(KVSTRATA_KERNELS_LEVEL_AUTO) == best);
}

TEST_CASE("every member of every table is there") {
  for (const kvstrata_kernels* table : {&Reference(), kernels::stub::Table()}) {
    const size_t first = offsetof(kvstrata_kernels, packed_shape);
    const size_t count = (sizeof(kvstrata_kernels) - first) / sizeof(void*);
    CHECK(count == 29);
    for (size_t i = 0; i < count; ++i) {
      void* member = nullptr;
      std::memcpy(&member, reinterpret_cast<const char*>(table) + first + i * sizeof(void*), sizeof member);
      CHECK(member != nullptr);
    }
  }
}

TEST_CASE("the stub answers UNSUPPORTED to everything") {
  const kvstrata_kernels& stub = *kernels::stub::Table();
  ForEachFunction(stub, [](const char* name, auto function, auto args) {
    INFO(name);
    CHECK(function(&args, nullptr) == KVSTRATA_KERNELS_UNSUPPORTED);
  });
  CHECK(stub.packed_shape(nullptr) == KVSTRATA_KERNELS_UNSUPPORTED);
  CHECK(stub.topk_workspace_bytes(nullptr, nullptr) == KVSTRATA_KERNELS_UNSUPPORTED);
  CHECK(stub.attention_workspace_bytes(nullptr, nullptr) == KVSTRATA_KERNELS_UNSUPPORTED);
  CHECK(stub.project_workspace_bytes(nullptr, nullptr) == KVSTRATA_KERNELS_UNSUPPORTED);
}

TEST_CASE("size first: NULL, too short for a size, longer with a zero tail, longer with an unknown member") {
  ForEachFunction(Reference(), [](const char* name, auto function, auto args) {
    INFO(name);
    using T = decltype(args);
    MakeEmpty(args);
    CHECK(function(nullptr, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    CHECK(function(&args, nullptr) == KVSTRATA_KERNELS_OK);  // empty calls succeed without any data pointer

    T shorter = args;
    shorter.struct_size = sizeof(uint32_t) - 1;
    CHECK(function(&shorter, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    shorter.struct_size = sizeof(T) - 1;  // cut within a member
    CHECK(function(&shorter, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    shorter.struct_size = 0;
    CHECK(function(&shorter, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    shorter.struct_size = 5000;  // a stray value: nothing behind the struct may be read for it
    CHECK(function(&shorter, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);

    struct {
      T known;
      uint64_t later;
    } longer = {args, 0};
    longer.known.struct_size = sizeof(T) + sizeof(uint64_t);
    CHECK(function(&longer.known, nullptr) == KVSTRATA_KERNELS_OK);
    longer.later = 1;
    CHECK(function(&longer.known, nullptr) == KVSTRATA_KERNELS_STRUCT_TOO_NEW);
  });
}

TEST_CASE("rows without pointers are refused") {
  const auto refuse = [](auto function, auto args, auto change) {
    MakeEmpty(args);
    change(args);
    CHECK(function(&args, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
  };
  const kvstrata_kernels& k = Reference();
  const auto rows = [](auto& a) { a.rows = 1; };
  const auto tokens = [](auto& a) { a.tokens = 1; };
  refuse(k.pack_rows, Args<kvstrata_pack_rows_args>(), rows);
  refuse(k.unpack_rows, Args<kvstrata_unpack_rows_args>(), rows);
  refuse(k.quantize_dequantize, Args<kvstrata_quantize_args>(), rows);
  refuse(k.f32_to_bf16, Args<kvstrata_convert_args>(), [](auto& a) { a.count = 1; });
  refuse(k.hadamard, Args<kvstrata_hadamard_args>(), rows);
  refuse(k.rope_frequencies, Args<kvstrata_rope_frequencies_args>(), [](auto& a) { a.rope_dims = 2; });
  refuse(k.rope, Args<kvstrata_rope_args>(), tokens);
  refuse(k.rms_norm, Args<kvstrata_rms_norm_args>(), rows);
  refuse(k.csa_pool, Args<kvstrata_pool_args>(), tokens);
  refuse(k.hca_pool, Args<kvstrata_pool_args>(), tokens);
  refuse(k.emit_entries, Args<kvstrata_emit_entries_args>(), rows);
  refuse(k.window_append, Args<kvstrata_window_args>(), rows);
  refuse(k.window_export, Args<kvstrata_window_args>(), rows);
  refuse(k.index_scores, Args<kvstrata_index_scores_args>(), [](auto& a) { a.tokens = a.entries = 1; });
  refuse(k.topk, Args<kvstrata_topk_args>(), tokens);
  refuse(k.attention, Args<kvstrata_attention_args>(), tokens);
  refuse(k.gather_rows, Args<kvstrata_move_args>(), rows);
  refuse(k.scatter_rows, Args<kvstrata_move_args>(), rows);
  refuse(k.project, Args<kvstrata_project_args>(), [](auto& a) { a.tokens = a.outputs = 1; });
}

TEST_CASE("contradictory scalars are refused") {
  const auto refuse = [](auto function, auto args, auto change) {
    MakeEmpty(args);
    change(args);
    CHECK(function(&args, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
  };
  const kvstrata_kernels& k = Reference();
  refuse(k.hadamard, Args<kvstrata_hadamard_args>(), [](auto& a) { a.width = 96; });
  refuse(k.hadamard, Args<kvstrata_hadamard_args>(), [](auto& a) { a.profile = 0; });
  refuse(k.rope, Args<kvstrata_rope_args>(), [](auto& a) { a.profile = 4; });
  refuse(k.rope, Args<kvstrata_rope_args>(), [](auto& a) { a.flags = 2; });
  refuse(k.rope, Args<kvstrata_rope_args>(), [](auto& a) { a.rope_dims = 6; });
  refuse(k.rope, Args<kvstrata_rope_args>(), [](auto& a) { a.rope_dims = 3; });
  refuse(k.rope, Args<kvstrata_rope_args>(), [](auto& a) { a.token_stride = 3; });
  refuse(k.rope_frequencies, Args<kvstrata_rope_frequencies_args>(), [](auto& a) { a.theta = NAN; });
  refuse(k.rope_frequencies, Args<kvstrata_rope_frequencies_args>(), [](auto& a) { a.yarn_factor = 16; });
  refuse(k.rms_norm, Args<kvstrata_rms_norm_args>(), [](auto& a) { a.width = 0; });
  refuse(k.rms_norm, Args<kvstrata_rms_norm_args>(), [](auto& a) { a.eps = -1.0f; });
  refuse(k.csa_pool, Args<kvstrata_pool_args>(), [](auto& a) { a.ratio = 0; });
  refuse(k.csa_pool, Args<kvstrata_pool_args>(), [](auto& a) { a.flags = 4; });
  refuse(k.csa_pool, Args<kvstrata_pool_args>(), [](auto& a) { a.position = UINT64_MAX; });
  refuse(k.hca_pool, Args<kvstrata_pool_args>(), [](auto& a) { a.flags = KVSTRATA_KERNELS_POOL_OVERLAP; });
  refuse(k.emit_entries, Args<kvstrata_emit_entries_args>(), [](auto& a) { a.format = 9; });
  refuse(k.emit_entries, Args<kvstrata_emit_entries_args>(),
         [](auto& a) { a.format = KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4; });  // width 4, blocks of 32
  refuse(k.emit_entries, Args<kvstrata_emit_entries_args>(), [](auto& a) { a.rows = UINT64_MAX; });
  refuse(k.window_append, Args<kvstrata_window_args>(), [](auto& a) { a.capacity = 0; });
  refuse(k.window_append, Args<kvstrata_window_args>(), [](auto& a) { a.ring_stride_bytes = 3; });
  refuse(k.topk, Args<kvstrata_topk_args>(), [](auto& a) { a.k = 0; });
  refuse(k.topk, Args<kvstrata_topk_args>(), [](auto& a) { a.entries = uint64_t{1} << 31; });
  refuse(k.index_scores, Args<kvstrata_index_scores_args>(), [](auto& a) { a.scale = NAN; });
  refuse(k.attention, Args<kvstrata_attention_args>(), [](auto& a) { a.window = 0; });
  refuse(k.gather_rows, Args<kvstrata_move_args>(), [](auto& a) { a.rows_per_page = 0; });
  refuse(k.gather_rows, Args<kvstrata_move_args>(), [](auto& a) { a.page_id_type = 2; });
  refuse(k.project, Args<kvstrata_project_args>(), [](auto& a) { a.weight_type = 2; });
  refuse(k.project, Args<kvstrata_project_args>(), [](auto& a) { a.tokens = a.inputs = UINT64_MAX; });
  refuse(k.pack_rows, Args<kvstrata_pack_rows_args>(), [](auto& a) { a.format = 0; });
  refuse(k.pack_rows, Args<kvstrata_pack_rows_args>(), [](auto& a) { a.reserved0 = 1; });
}

TEST_CASE("a refused call writes nothing") {
  std::array<float, 64> values;
  values.fill(3.0f);
  const auto untouched = [&] {
    for (float value : values) {
      if (value != 3.0f) return false;
    }
    return true;
  };
  SECTION("misaligned floats") {
    auto a = Args<kvstrata_hadamard_args>();
    a.profile = KVSTRATA_KERNELS_PROFILE_F;
    a.width = 4;
    a.rows = 2;
    unsigned char* odd = reinterpret_cast<unsigned char*>(values.data()) + 1;
    std::memcpy(&a.values, &odd, sizeof odd);
    CHECK(Reference().hadamard(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    CHECK(untouched());
  }
  SECTION("a pool whose output is one row short keeps its state") {
    std::array<float, 64> input{};
    auto a = Args<kvstrata_pool_args>();
    a.flags = KVSTRATA_KERNELS_POOL_OVERLAP;
    a.ratio = 2;
    a.width = 2;
    a.tokens = 4;
    a.values = a.gates = input.data();
    a.prev_values = values.data();
    a.prev_gates = values.data() + 8;
    a.open_values = values.data() + 16;
    a.open_gates = values.data() + 24;
    a.entries = values.data() + 32;
    a.entry_capacity = 1;
    CHECK(Reference().csa_pool(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    CHECK(untouched());
    a.entry_capacity = 2;
    CHECK(Reference().csa_pool(&a, nullptr) == KVSTRATA_KERNELS_OK);
    CHECK_FALSE(untouched());
  }
  SECTION("an attention workspace one byte short") {
    std::array<float, 64> input{};
    auto a = Args<kvstrata_attention_args>();
    a.profile = KVSTRATA_KERNELS_PROFILE_F;
    a.heads = 1;
    a.width = 4;
    a.window = 4;
    a.tokens = 2;
    a.queries = a.window_kv = input.data();
    a.window_rows = 2;
    a.output = values.data();
    uint64_t bytes = 0;
    REQUIRE(Reference().attention_workspace_bytes(&a, &bytes) == KVSTRATA_KERNELS_OK);
    a.workspace = input.data() + 32;
    a.workspace_bytes = bytes - 1;
    CHECK(Reference().attention(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
    CHECK(untouched());
    CHECK(Reference().attention_workspace_bytes(&a, nullptr) == KVSTRATA_KERNELS_INVALID_ARGUMENT);
  }
}
