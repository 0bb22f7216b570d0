// SPDX-License-Identifier: Apache-2.0
// One random call of a kernel, repeatable on every level: the differential fuzz of the kernel table.
//
// A function's case draws its shapes and data from `rng` of a Case, so that the same seed is the same call on every
// level; calls the level's table, in one piece or in pieces of random size; and leaves its outputs in the Case.
// kernels_fuzz_test.cc runs each case on the reference and on every level and compares:
//   - reference against level: equal bits, or within the tolerance that the case derives from its data;
//   - a level in one piece against the same level in pieces: equal bits, always.
//
// Every buffer lies against a page that must not be touched (tests/support/guarded_buffer.h); inputs are read-only.
// Gaps between rows: in inputs NaN, which must not reach a result; in outputs a pattern, which must stay.
//
// Thread rule: one thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/fake_random.h"
#include "tests/support/guarded_buffer.h"
#include "tests/unit/kernels/kernel_test.h"

namespace kvstrata::kernels::test {

using kvstrata::test::Edge;
using kvstrata::test::GuardedBuffer;
using kvstrata::test::Rng;

enum class Element { kByte, kFloat, kBf16 };
// How an output is compared with the reference's.
enum class Match { kBits, kBitsOrNan, kTolerance, kSameLevelOnly };

// Elements begin .. begin+count-1 may differ by this much in the root mean square.
struct SpanBound {
  uint64_t begin, count;
  double root_mean_square;
};

struct Output {
  std::string name;
  Element element;
  Match match;
  const uint8_t* data;
  size_t bytes;
  // kTolerance: per element the largest difference; elements without an entry must be equal.
  std::vector<double> tolerance;
  std::vector<SpanBound> spans;
};

// Random numbers of a kind.
enum class Fill {
  kPlain,  // uniform in [-4, 4)
  kWide,   // a random exponent from 2^-20 to 2^19
  kTiny,   // denormal and just above: exponents -149 to -100, zeros
  kEdges,  // any exponent, denormal, zero of either sign; largest below 2^60 so that sums stay finite
  kBits,   // any bit pattern, NaN and infinity too
};

// A matrix of floats or bf16 numbers in guarded memory. `floats` has what the numbers mean, gaps included.
struct Matrix {
  void* data = nullptr;
  int32_t type = KVSTRATA_KERNELS_F32;
  uint64_t rows = 0, width = 0, stride = 0;
  std::vector<float> floats;

  const float* Row(uint64_t row) const { return floats.data() + row * stride; }
  uint64_t element() const { return type == KVSTRATA_KERNELS_F32 ? 4 : 2; }
  // Row `row` as the kernel's argument.
  void* At(uint64_t row, uint64_t channel = 0) const {
    return static_cast<uint8_t*>(data) + (row * stride + channel) * element();
  }
};

// Packed rows in guarded memory.
struct Packed {
  kvstrata_packed_shape shape{};
  kvstrata_packed_planes planes{};

  kvstrata_packed_planes From(uint64_t row) const;
};

class Case {
 public:
  // Cuts the work into pieces if `cuts` is not null.
  Case(const kvstrata_kernels& table, uint64_t seed, Rng* cuts) : k(table), rng(seed), cuts_(cuts) {}

  const kvstrata_kernels& k;
  Rng rng;

  bool whole() const { return cuts_ == nullptr; }
  // The size of the next piece of `left`: all of it, or 1 .. left.
  uint64_t Piece(uint64_t left) { return whole() || left == 0 ? left : cuts_->Between(1, left); }

  template <typename T, size_t N>
  T OneOf(const T (&choices)[N]) {
    return choices[rng.Below(N)];
  }

  // -- memory

  uint8_t* Bytes(size_t bytes);
  template <typename T>
  T* Copy(const std::vector<T>& values) {
    uint8_t* data = Bytes(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(data, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(data);
  }
  // Copies that a kernel must not write.
  template <typename T>
  const T* Input(const std::vector<T>& values) {
    T* data = Copy(values);
    read_only_.push_back(buffers_.size() - 1);
    return data;
  }

  // -- random data

  float Number(Fill fill);
  std::vector<float> Numbers(uint64_t count, Fill fill);
  // `width`, or a little more.
  uint64_t Stride(uint64_t width) { return rng.Chance(50) ? width : width + rng.Between(1, 9); }
  // Input rows of a type; bf16 numbers are those floats rounded.
  Matrix Rows(int32_t type, uint64_t rows, uint64_t width, Fill fill);
  // The same, may be written: for in-place functions.
  Matrix InPlace(uint64_t rows, uint64_t width, Fill fill);
  // Rows of `floats` [rows][width], packed by the reference, in read-only memory: planar, interleaved or padded.
  Packed PackedRows(int32_t format, uint32_t width, uint32_t rope_dims, uint64_t rows,
                    const std::vector<float>& floats);
  // What packed rows mean, by the reference: [rows][width].
  std::vector<float> Unpacked(const Packed& packed, uint64_t rows);
  // Empty planes of the same kinds of layout, as an output under `name`.
  Packed PackedOutput(const std::string& name, const kvstrata_packed_shape& shape, uint64_t rows, Match match);

  // -- outputs and what must hold

  // A matrix filled with a pattern, compared at the end as a whole, gaps included.
  Matrix OutputRows(const std::string& name, int32_t type, uint64_t rows, uint64_t width, Match match);
  void AddOutput(const std::string& name, Element element, Match match, const void* data, size_t bytes);
  // Of element `index` of the newest output.
  void Tolerate(uint64_t index, double tolerance);
  void TolerateRootMeanSquare(uint64_t begin, uint64_t count, double bound) {
    outputs_.back().spans.push_back({begin, count, bound});
  }
  // Tolerances are those of the reference's run; the others need not compute them.
  bool tolerances() const { return k.level == KVSTRATA_KERNELS_LEVEL_REFERENCE && whole(); }

  // Calls count as failed unless they return 0.
  void Ok(int32_t status, const char* call);
  void Expect(bool held, const std::string& what) {
    if (!held) problems_.push_back(what);
  }
  // Workspace of exactly the size that a function asked for; or none.
  void* Workspace(uint64_t bytes);

  void Freeze();  // makes the inputs read-only; before the first call

  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  // Planes of a random layout; returns the buffers' indices in `made`.
  Packed LayPlanes(const kvstrata_packed_shape& shape, uint64_t rows, std::vector<size_t>& made);

  Rng* cuts_;
  std::vector<GuardedBuffer> buffers_;
  std::vector<size_t> read_only_;
  std::vector<Output> outputs_;
  std::vector<std::string> problems_;
};

// The distance between neighbouring bf16 numbers at a magnitude: what a difference of one last bit before the rounding
// can become after it.
inline double Bf16Step(double magnitude) { return std::ldexp(std::fabs(magnitude), -7) + 0x1p-133; }

// Shapes of a format: the default, or any that the contract allows for small models.
kvstrata_packed_shape AnyShape(Case& c, int32_t format);
// A table of rope_dims/2 frequencies in read-only memory; with YaRN or without.
const float* Frequencies(Case& c, uint32_t rope_dims, std::vector<float>& values);

// One function each; fuzz_*.cc.
void FuzzPackRows(Case& c);
void FuzzUnpackRows(Case& c);
void FuzzQuantize(Case& c);
void FuzzConvert(Case& c);
void FuzzHadamard(Case& c);
void FuzzRopeFrequencies(Case& c);
void FuzzRope(Case& c);
void FuzzRmsNorm(Case& c);
void FuzzPool(Case& c);
void FuzzEmitEntries(Case& c);
void FuzzCompress(Case& c);
void FuzzWindow(Case& c);
void FuzzMove(Case& c);
void FuzzIndexScores(Case& c);
void FuzzTopK(Case& c);
void FuzzAttention(Case& c);
void FuzzProject(Case& c);

}  // namespace kvstrata::kernels::test
