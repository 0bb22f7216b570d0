// SPDX-License-Identifier: Apache-2.0
// What compressing rows gains and costs, on the rows of a real forward pass: the mini engine with V4-Flash's widths
// over this repository's own text, in packed rows and in wider ones, each kind of stream for itself. Slices as a block
// has them: rows of 128 tokens.
//
// Four lines a stream: bytes stored over bytes given; decoding and encoding as shares of a copy of the same bytes by
// the same core; and decoding as a share of reading the plain bytes from the bare drive. Decoded bytes are compared
// with what was encoded, in each run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/ratio.h"
#include "benchmarks/storage/drive.h"
#include "examples/mini_engine/engine.h"
#include "examples/mini_engine/tokenizer.h"
#include "kvstrata/kernels.h"
#include "lib/codec/slice_codec.h"

namespace {

namespace benchmarks = kvstrata::benchmarks;
namespace codec = kvstrata::core::codec;
namespace layout = kvstrata::core::layout;
using benchmarks::Fail;

constexpr uint64_t kTokens = 4096;
constexpr uint64_t kBlockTokens = 128;
// More than the caches hold.
constexpr uint64_t kPlainBytes = 64 << 20;

using Bytes = std::vector<std::byte>;

std::vector<int32_t> RepositoryText() {
  std::string text;
  for (const char* name : {"README.md", "ARCHITECTURE.md", "lib/format/FORMAT.md"}) {
    std::ifstream stream(std::string(KVSTRATA_SOURCE_FOLDER) + "/" + name);
    text.append(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  std::vector<int32_t> tokens = mini_engine::Tokenize(text);
  if (tokens.size() < kTokens) Fail("too little text");
  tokens.resize(kTokens);
  return tokens;
}

struct StreamRows {
  std::string name;
  layout::Stream stream;
  uint64_t slice_bytes = 0;
  Bytes rows;  // whole slices, at least one
};

StreamRows RowsOf(const std::string& name, const std::vector<uint8_t>& bytes, uint64_t used, uint32_t row_bytes,
                  uint64_t rows, layout::Packing packing) {
  StreamRows out;
  out.name = name;
  out.stream.packing = packing;
  out.stream.row_bytes = row_bytes;
  out.slice_bytes = rows * row_bytes;
  const auto view = std::as_bytes(std::span(bytes).first(used / out.slice_bytes * out.slice_bytes));
  out.rows.assign(view.begin(), view.end());
  return out;
}

// The window, the compressed entries and the index keys of a model's layers, by what they are.
void AddStreams(mini_engine::RowStorage storage, const std::string& suffix, std::vector<StreamRows>* streams) {
  mini_engine::ModelConfig config = mini_engine::V4FlashWidthsConfig();
  config.storage = storage;
  const auto model = std::make_shared<const mini_engine::Model>(config, KVSTRATA_KERNELS_LEVEL_AUTO);
  mini_engine::Engine engine(model, {.max_tokens = kTokens, .chunk_tokens = 64, .threads = 2});
  engine.Run(RepositoryText());
  const auto row_packing = static_cast<layout::Packing>(model->row_format.packing());
  const auto key_packing = static_cast<layout::Packing>(model->key_format.packing());
  const uint32_t row_bytes = model->row_format.row_bytes(), key_bytes = model->key_format.row_bytes();
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const mini_engine::LayerMemory& memory = engine.memory(i);
    if (memory.kind != mini_engine::LayerKind::kCsa) continue;
    const uint64_t entries = kTokens / config.csa_ratio, slice_rows = kBlockTokens / config.csa_ratio;
    streams->push_back(
        RowsOf("csa_" + suffix, memory.entries.bytes, entries * row_bytes, row_bytes, slice_rows, row_packing));
    streams->push_back(
        RowsOf("keys_" + suffix, memory.keys.bytes, entries * key_bytes, key_bytes, slice_rows, key_packing));
  }
  // The last layer's: a window of the first depends on nothing but its own token, and says the same for the same byte.
  const std::vector<uint8_t>& ring = engine.memory(config.layers.size() - 1).ring;
  streams->push_back(RowsOf("window_" + suffix, ring, ring.size(), row_bytes, kBlockTokens, row_packing));
}

// The slices of one stream many times over, encoded.
class Slices {
 public:
  explicit Slices(const StreamRows& given) : given_(given), count_(kPlainBytes / given.slice_bytes) {
    plain_.resize(count_ * given.slice_bytes);
    out_.resize(plain_.size());
    scratch_.resize(2 * given.slice_bytes);
    coded_.resize(given.slice_bytes);
    const uint64_t own = given.rows.size() / given.slice_bytes;
    for (uint64_t i = 0; i < count_; ++i)
      std::memcpy(Plain(i), given.rows.data() + i % own * given.slice_bytes, given.slice_bytes);
  }

  uint64_t plain_bytes() const { return plain_.size(); }
  uint64_t stored_bytes() const { return stored_.size(); }

  void Encode() {
    stored_.clear();
    starts_ = {0};
    for (uint64_t i = 0; i < count_; ++i) {
      const std::span<const std::byte> rows(Plain(i), given_.slice_bytes);
      const uint64_t size = encoder_.Encode(given_.stream, rows, scratch_, coded_);
      const std::byte* const from = size > 0 ? coded_.data() : rows.data();
      stored_.insert(stored_.end(), from, from + (size > 0 ? size : given_.slice_bytes));
      starts_.push_back(stored_.size());
    }
  }

  void Decode() {
    for (uint64_t i = 0; i < count_; ++i) {
      const std::span<const std::byte> stored(stored_.data() + starts_[i], starts_[i + 1] - starts_[i]);
      const std::span<std::byte> rows(out_.data() + i * given_.slice_bytes, given_.slice_bytes);
      if (stored.size() == rows.size()) {
        std::memcpy(rows.data(), stored.data(), rows.size());
      } else if (!decoder_.Decode(given_.stream, stored, scratch_, rows).ok()) {
        Fail("a slice was refused");
      }
    }
  }

  void Copy() { std::memcpy(out_.data(), plain_.data(), plain_.size()); }
  void Forget() { std::ranges::fill(out_, std::byte{0}); }
  void Check() const {
    if (out_ != plain_) Fail("other rows");
  }

 private:
  std::byte* Plain(uint64_t i) { return plain_.data() + i * given_.slice_bytes; }

  const StreamRows& given_;
  const uint64_t count_;
  Bytes plain_, stored_, out_, scratch_, coded_;
  std::vector<uint64_t> starts_;
  codec::SliceEncoder encoder_;
  codec::SliceDecoder decoder_;
};

void Measure(const StreamRows& stream, benchmarks::RawFile& drive) {
  Slices slices(stream);
  slices.Encode();
  slices.Forget();
  slices.Decode();
  slices.Check();
  const double share = static_cast<double>(slices.stored_bytes()) / static_cast<double>(slices.plain_bytes());
  const std::string name = "compressed_" + stream.name;
  std::printf("ratio %s_bytes %.3f goal <=0.95 over %llu bytes a slice\n", name.c_str(), share,
              static_cast<unsigned long long>(stream.slice_bytes));
  if (slices.stored_bytes() == slices.plain_bytes()) return;
  const auto decode = [&] {
    const double seconds = benchmarks::SecondsOf([&] { slices.Decode(); });
    slices.Check();
    slices.Forget();
    return seconds;
  };
  const auto copy = [&] { return benchmarks::SecondsOf([&] { slices.Copy(); }); };
  constexpr int kSlowPairs = 11;
  benchmarks::PrintTimedPairs((name + "_decode_of_memcpy").c_str(), ">=0.08", kSlowPairs, decode, copy, true);
  benchmarks::PrintTimedPairs((name + "_encode_of_memcpy").c_str(), ">=0.05", kSlowPairs,
                              [&] { return benchmarks::SecondsOf([&] { slices.Encode(); }); }, copy, true);
  benchmarks::PrintTimedPairs((name + "_decode_of_raw_read").c_str(), ">=0.40", kSlowPairs, decode,
                              [&] { return benchmarks::SecondsOf([&] { drive.Read(); }); }, true);
}

}  // namespace

int main() {
  std::vector<StreamRows> streams;
  AddStreams(mini_engine::RowStorage::kPacked, "packed", &streams);
  AddStreams(mini_engine::RowStorage::kBf16, "bf16", &streams);
  const benchmarks::Folder folder;
  benchmarks::RawFile drive(folder.path() + "/raw", kPlainBytes >> 20, 1 << 20);
  drive.Write();
  for (const StreamRows& stream : streams) Measure(stream, drive);
  return 0;
}
