// SPDX-License-Identifier: Apache-2.0
// Attention of one token from packed records: window rows and picks gathered at random from a pool of 153 MB, widened,
// one softmax with a sink, inverse rotation; against the peak of the level's multiply-adds and the scalar reference.
//
// 4 * heads * rows * width operations: two products, a multiply and an add each. Of the peak alone a kernel that brings
// rows from memory and widens them cannot have all, the less so the fewer heads share a row: the second line of a level
// has these rows' way out of the pool, by unpack_rows, beside the products; what is left is laying rows out twice, the
// softmax and the rotation. Every call takes another list of picks, so that none finds its rows in cache. Every output
// is held against the reference's before anything is measured.
//
// Thread rule: one thread.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

using namespace kvstrata::benchmarks;
using kvstrata::kernels::Get;

constexpr uint32_t kWidth = 512;
constexpr uint32_t kRope = 64;
constexpr uint32_t kWindow = 128;
constexpr uint32_t kRatio = 4;
constexpr uint64_t kPool = 262144;
constexpr uint64_t kRowBytes = 584;
constexpr uint64_t kLists = 64;

struct Shape {
  uint32_t heads;
  uint32_t picks;
  double Flop() const { return 4.0 * heads * (kWindow + picks) * kWidth; }
  std::string Name() const { return std::to_string(heads) + "x" + std::to_string(kWindow + picks); }
};

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "attention benchmark: %s\n", what);
  std::exit(1);
}

class Random {
 public:
  uint32_t Bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  float Float() { return static_cast<float>(static_cast<int32_t>(Bits())) * 0x1p-31f; }

 private:
  uint64_t state_ = 11;
};

uint16_t Half(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// Any codes but NaN, scales about 2^-8, so that values lie below 2; the rope part is bf16 below 1.
void FillRecords(Random& random, uint8_t* records, uint64_t count) {
  for (uint64_t row = 0; row < count; ++row, records += kRowBytes) {
    for (uint32_t c = 0; c < kWidth - kRope; ++c) {
      const uint8_t code = static_cast<uint8_t>(random.Bits() >> 24);
      records[c] = (code & 0x7Fu) == 0x7Fu ? 0 : code;
    }
    for (uint32_t c = 0; c < kRope; ++c) {
      const uint16_t half = Half(random.Float());
      records[kWidth - kRope + 2 * c] = static_cast<uint8_t>(half);
      records[kWidth - kRope + 2 * c + 1] = static_cast<uint8_t>(half >> 8);
    }
    for (uint32_t b = 0; b < 8; ++b) records[576 + b] = b < 7 ? static_cast<uint8_t>(118 + random.Bits() % 2) : 0;
  }
}

kvstrata_packed_planes Planes(uint8_t* records) {
  kvstrata_packed_planes planes{};
  planes.codes = records;
  planes.rope = records + 448;
  planes.scales = records + 576;
  planes.code_stride_bytes = planes.rope_stride_bytes = planes.scale_stride_bytes = kRowBytes;
  return planes;
}

// Everything that calls of one shape need.
class Problem {
 public:
  Problem(const Shape& shape, HugeBuffer& pool, HugeBuffer& window) : shape_(shape) {
    Random random;
    for (uint64_t i = 0; i < uint64_t{shape.heads} * kWidth; ++i) queries_.push_back(Half(random.Float()));
    for (uint64_t i = 0; i < kLists * shape.picks; ++i) picks_.push_back(static_cast<int32_t>(random.Bits() % kPool));
    for (uint32_t h = 0; h < shape.heads; ++h) sinks_.push_back(random.Float());
    for (uint32_t k = 0; k < kRope / 2; ++k) frequencies_.push_back(std::pow(160000.0f, -static_cast<float>(k) / 32));
    args_.struct_size = sizeof args_;
    args_.profile = KVSTRATA_KERNELS_PROFILE_Q;
    args_.flags = KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE;
    args_.heads = shape.heads;
    args_.width = kWidth;
    args_.rope_dims = kRope;
    args_.window = kWindow;
    args_.window_rows = kWindow;
    args_.ratio = kRatio;
    args_.pick_count = shape.picks;
    args_.tokens = 1;
    args_.first_position = kPool * kRatio - 1;
    args_.window_first = args_.first_position + 1 - kWindow;
    args_.entry_count = kPool;
    args_.query_type = KVSTRATA_KERNELS_BF16;
    args_.output_type = KVSTRATA_KERNELS_BF16;
    args_.window_format = args_.entry_format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
    args_.packed_window = Planes(window.as());
    args_.packed_entries = Planes(pool.as());
    args_.queries = queries_.data();
    args_.sinks = sinks_.data();
    args_.frequencies = frequencies_.data();
  }

  const std::vector<uint16_t>& Run(const kvstrata_kernels& level) {
    args_.picks = picks_.data() + list_ * shape_.picks;
    list_ = (list_ + 1) % kLists;
    uint64_t bytes = 0;
    if (level.attention_workspace_bytes(&args_, &bytes) != 0) Fail("no workspace");
    if (workspace_.size() * sizeof(float) < bytes) workspace_.resize(bytes / sizeof(float) + 1);
    output_.resize(queries_.size());
    args_.workspace = workspace_.data();
    args_.workspace_bytes = workspace_.size() * sizeof(float);
    args_.output = output_.data();
    if (level.attention(&args_, nullptr) != 0) Fail("a call failed");
    return output_;
  }

  // What none can do without besides the products: each row of the list out of the pool and unpacked to bf16, while the
  // rows after it are on their way.
  void UnpackRows(const kvstrata_kernels& level) {
    constexpr uint64_t kAhead = 16;
    list_ = (list_ + 1) % kLists;
    const uint64_t rows = kWindow + shape_.picks;
    rows_.resize(kWidth * rows);
    for (uint64_t i = 0; i < rows; ++i) {
      const uint8_t* later = Row(i + kAhead < rows ? i + kAhead : i);
      for (uint64_t byte = 0; byte < kRowBytes; byte += 64) __builtin_prefetch(later + byte);
      const uint8_t* row = Row(i);
      kvstrata_unpack_rows_args a{};
      a.struct_size = sizeof a;
      a.format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
      a.destination_type = KVSTRATA_KERNELS_BF16;
      a.rows = 1;
      a.codes = row;
      a.rope = row + 448;
      a.scales = row + 576;
      a.destination = rows_.data() + i * kWidth;
      if (level.unpack_rows(&a, nullptr) != 0) Fail("a row is not unpacked");
    }
  }

  // Within the rounding differences that kernels.h allows for values below 2.
  void Check(const kvstrata_kernels& level, const kvstrata_kernels& reference) {
    list_ = 0;
    const std::vector<uint16_t> expected = Run(reference);
    list_ = 0;
    const std::vector<uint16_t>& got = Run(level);
    for (size_t i = 0; i < got.size(); ++i) {
      const float a = std::bit_cast<float>(uint32_t{got[i]} << 16);
      const float b = std::bit_cast<float>(uint32_t{expected[i]} << 16);
      if (!(std::fabs(a - b) <= 0x1p-6f)) Fail("the result is not the reference's");
    }
  }

 private:
  // Row i of the list: the window's rows, then the picks.
  const uint8_t* Row(uint64_t i) const {
    if (i < kWindow) return args_.packed_window.codes + i * kRowBytes;
    const int32_t pick = picks_[list_ * shape_.picks + i - kWindow];
    return args_.packed_entries.codes + static_cast<uint64_t>(pick) * kRowBytes;
  }

  Shape shape_;
  std::vector<uint16_t> queries_, output_, rows_;
  std::vector<int32_t> picks_;
  std::vector<float> sinks_, frequencies_, workspace_;
  kvstrata_attention_args args_{};
  uint64_t list_ = 0;
};

void AgainstPeak(Problem& problem, const Shape& shape, const kvstrata_kernels& level, void (*peak)(double),
                 const char* goal) {
  problem.Check(level, *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE));
  const std::string name = "attention_" + shape.Name() + "_" + level.name + "_of_peak";
  PrintShare(
      name.c_str(), goal, [&] { problem.Run(level); }, [&] { peak(shape.Flop()); });
  PrintShare((name + "_and_unpacking").c_str(), ">=0.80", [&] { problem.Run(level); },
             [&] {
               problem.UnpackRows(level);
               peak(shape.Flop());
             });
}

void AgainstReference(Problem& problem, const Shape& shape, const kvstrata_kernels& level) {
  const kvstrata_kernels& reference = *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  problem.Check(level, reference);
  const std::string name = "attention_" + shape.Name() + "_" + level.name + "_vs_reference";
  PrintShare(
      name.c_str(), ">=5.0", [&] { problem.Run(level); }, [&] { problem.Run(reference); });
}

}  // namespace

int main() {
  HugeBuffer pool(kPool * kRowBytes);
  HugeBuffer window(kWindow * kRowBytes);
  Random random;
  FillRecords(random, pool.as(), kPool);
  FillRecords(random, window.as(), kWindow);
  const kvstrata_kernels* dot = HasDotBf16() ? Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16) : nullptr;
  const kvstrata_kernels* wide = HasFma512() ? Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX512) : nullptr;
  const kvstrata_kernels* avx2 = HasFma256() ? Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX2) : nullptr;
  const Shape flash{64, 512};
  const Shape pro{128, 1024};
  for (const Shape& shape : {flash, pro}) {
    Problem problem(shape, pool, window);
    if (dot != nullptr) AgainstPeak(problem, shape, *dot, DotBf16, shape.heads == 64 ? ">=0.75" : ">=0.78");
    if (wide != nullptr) AgainstPeak(problem, shape, *wide, Fma512, ">=0.70");
    if (avx2 != nullptr) AgainstPeak(problem, shape, *avx2, Fma256, ">=0.70");
  }
  Problem problem(flash, pool, window);
  for (const kvstrata_kernels* level : {dot, wide, avx2}) {
    if (level != nullptr) AgainstReference(problem, flash, *level);
  }
  return 0;
}
