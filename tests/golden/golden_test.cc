// SPDX-License-Identifier: Apache-2.0
// Our kernels against transformers' DeepSeek-V4 classes, numeric profile F (generate/README.md says what the vectors
// hold): in one call, cut into calls, resumed from saved state, resumed from transformers' own cache; and controls that
// must fail.
//
// The measure is |ours - golden| <= 1e-5 * max(1, |golden|), the same for every output: both sides compute in fp32 from
// equal inputs. The worst, at 4e-6, are index scores of model B: a sum over 4 heads of dot products near 10 over 128
// channels, so of partial sums whose fp32 spacing is 1e-6.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/golden/layer.h"
#include "tests/golden/vector_file.h"
#include "tests/support/catch.hpp"

namespace golden = kvstrata::golden;
using golden::CompressorState;
using golden::Config;
using golden::Faults;
using golden::Layer;
using golden::LayerKind;
using golden::LayerOutput;
using golden::LayerState;
using golden::Record;
using golden::VectorFile;

namespace {

constexpr double kTolerance = 1e-5;

const VectorFile& File(const std::string& name) {
  static std::map<std::string, VectorFile> files;
  const auto known = files.find(name);
  if (known != files.end()) return known->second;
  std::string error;
  std::optional<VectorFile> file = VectorFile::Load(std::string(KVSTRATA_GOLDEN_VECTORS) + "/" + name, error);
  INFO(error);
  REQUIRE(file);
  return files.emplace(name, std::move(*file)).first->second;
}

const Record& Get(const VectorFile& file, const std::string& name) {
  INFO(name);
  const Record* record = file.Find(name);
  REQUIRE(record != nullptr);
  return *record;
}

std::vector<uint64_t> Lengths(const VectorFile& file) {
  const std::vector<int32_t>& lengths = Get(file, "lengths").ints;
  return {lengths.begin(), lengths.end()};
}

std::vector<const kvstrata_kernels*> FindHostLevels() {
  std::vector<const kvstrata_kernels*> levels;
  for (const int32_t level : {KVSTRATA_KERNELS_LEVEL_REFERENCE, KVSTRATA_KERNELS_LEVEL_CPU}) {
    if (const kvstrata_kernels* table = kvstrata::kernels::Get(level)) {
      levels.push_back(table);
    } else {
      WARN("kernel level " << level << " is not in this build: skipped");
    }
  }
  return levels;
}

// The levels of this machine that take host memory. Found, and what lacks told, once.
const std::vector<const kvstrata_kernels*>& HostLevels() {
  static const std::vector<const kvstrata_kernels*> levels = FindHostLevels();
  return levels;
}

std::string Name(uint64_t index, const std::string& what) { return "layers." + std::to_string(index) + "." + what; }

// Calls `test` for every layer that the file has outputs of, on every level.
void ForEachLayer(const std::string& file_name, const std::function<void(uint64_t index, const Layer& layer)>& test) {
  const VectorFile& file = File(file_name);
  const Config config(file);
  for (const kvstrata_kernels* kernels : HostLevels()) {
    for (uint64_t index = 0; index < config.layer_kinds.size(); ++index) {
      if (file.Find("run." + Name(index, "output")) == nullptr) continue;
      INFO(file_name << ", layer " << index << ", level " << kernels->name);
      test(index, Layer(file, config, index, *kernels));
    }
  }
}

// ---------------------------------------------------------------------------------------------------- comparison

struct Comparison {
  uint64_t compared = 0;
  std::vector<uint64_t> wrong_rows;  // ascending
  double worst = 0;                  // |ours - golden| / max(1, |golden|)
};

using Use = std::function<bool(uint64_t row, uint64_t column)>;

// Rows first .. last-1 of `ours`, whose shape is the record's; only what `use` says, if given.
Comparison CompareRows(const Record& want, const std::vector<float>& ours, uint64_t first, uint64_t last,
                       const Use& use = nullptr) {
  Comparison result;
  const uint64_t row_size = want.row();
  REQUIRE(ours.size() == want.shape.at(0) * row_size);
  const uint64_t begin = (first * row_size + want.stride - 1) / want.stride;
  for (uint64_t i = begin; i < want.floats.size() && i * want.stride < last * row_size; ++i) {
    const uint64_t row = i * want.stride / row_size;
    if (use && !use(row, i * want.stride % row_size)) continue;
    const double golden_value = want.floats[i];
    const double error = std::abs(ours[i * want.stride] - golden_value) / std::max(1.0, std::abs(golden_value));
    ++result.compared;
    if (error <= kTolerance) {
      result.worst = std::max(result.worst, error);
    } else if (result.wrong_rows.empty() || result.wrong_rows.back() != row) {  // NaN comes here
      result.wrong_rows.push_back(row);
      result.worst = std::max(result.worst, error);
    }
  }
  return result;
}

void CheckRows(const VectorFile& file, const std::string& name, const std::vector<float>& ours, uint64_t first,
               uint64_t last, const Use& use = nullptr) {
  const Comparison result = CompareRows(Get(file, name), ours, first, last, use);
  INFO(name << ", rows " << first << " to " << last << ", worst error " << result.worst);
  CHECK(result.wrong_rows == std::vector<uint64_t>());
  if (!use && first < last) CHECK(result.compared != 0);
}

void CheckWhole(const VectorFile& file, const std::string& name, const std::vector<float>& ours) {
  CheckRows(file, name, ours, 0, Get(file, name).shape.at(0));
}

// Whether the selection of each query is decided, that is the same under errors within the tolerance.
Use Decided(const VectorFile& file, uint64_t index) {
  const Record* gaps = file.Find("run." + Name(index, "top_k_gap"));
  const float bound = Get(file, "config.decided_gap").floats.at(0);
  return [=](uint64_t row, uint64_t) { return gaps == nullptr || gaps->floats.at(row) > bound; };
}

void CheckSelection(const VectorFile& file, uint64_t index, const LayerOutput& output, uint64_t first, uint64_t last) {
  const Record& want = Get(file, "run." + Name(index, "top_k"));
  const uint64_t columns = output.top_k.size() / want.shape.at(0);
  const Use decided = Decided(file, index);
  const auto chosen = [](const std::vector<int32_t>& picks, uint64_t row, uint64_t width) {
    std::vector<int32_t> set(picks.begin() + static_cast<ptrdiff_t>(row * width),
                             picks.begin() + static_cast<ptrdiff_t>((row + 1) * width));
    std::erase(set, -1);
    std::sort(set.begin(), set.end());
    return set;
  };
  std::vector<uint64_t> wrong;
  for (uint64_t row = first; row < last; ++row) {
    if (decided(row, 0) && chosen(output.top_k, row, columns) != chosen(want.ints, row, want.row())) {
      wrong.push_back(row);
    }
  }
  INFO("layer " << index << ", queries with another selection");
  CHECK(wrong == std::vector<uint64_t>());
}

void CheckOutput(const VectorFile& file, uint64_t index, const Layer& layer, const LayerOutput& output, uint64_t first,
                 uint64_t last) {
  const std::string run = "run." + Name(index, "");
  CheckRows(file, run + "q_latent", output.q_latent, first, last);
  CheckRows(file, run + "q", output.q, first, last);
  CheckRows(file, run + "kv", output.kv, first, last);
  if (layer.kind() == LayerKind::kCsa) {
    CheckRows(file, run + "scores", output.scores, first, last,
              [&](uint64_t row, uint64_t entry) { return entry < (row + 1) / layer.ratio(); });
    CheckSelection(file, index, output, first, last);
  }
  const Use decided = Decided(file, index);
  CheckRows(file, run + "attention", output.attention, first, last, decided);
  CheckRows(file, run + "attention_unrotated", output.attention_unrotated, first, last, decided);
  CheckRows(file, run + "o_a", output.o_a, first, last, decided);
  CheckRows(file, run + "output", output.output, first, last, decided);
}

// --------------------------------------------------------------------------------------------------------- state

// The first `rows` rows of a buffer with the bias taken off each (sign -1) or put on (sign +1).
std::vector<float> OpenRows(const std::vector<float>& buffer, uint64_t rows, const std::vector<float>& bias,
                            uint64_t ratio, float sign) {
  const uint64_t count = rows * (bias.size() / ratio);
  REQUIRE(buffer.size() >= count);
  std::vector<float> result(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(count));
  for (uint64_t i = 0; i < count; ++i) result[i] += sign * bias[i];
  return result;
}

std::vector<float> FirstRows(const std::vector<float>& buffer, uint64_t count) {
  REQUIRE(buffer.size() >= count);
  return {buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(count)};
}

// transformers buffers the open block's gates without position bias, the overlap's with it; our state has it in both.
void CheckCompressor(const VectorFile& file, const std::string& prefix, const CompressorState& state,
                     const std::vector<float>& bias, uint64_t ratio, uint64_t position) {
  const uint64_t open = position % ratio;
  CheckWhole(file, prefix + "compressed_kv", state.entries);
  CheckWhole(file, prefix + "buffer_kv", FirstRows(state.open_values, open * (bias.size() / ratio)));
  CheckWhole(file, prefix + "buffer_gate", OpenRows(state.open_gates, open, bias, ratio, -1.0f));
  if (state.prev_values.empty() || position < ratio) {
    CHECK(file.Find(prefix + "overlap_kv") == nullptr);
    return;
  }
  CheckWhole(file, prefix + "overlap_kv", state.prev_values);
  CheckWhole(file, prefix + "overlap_gate", state.prev_gates);
}

void CheckState(const VectorFile& file, uint64_t index, const Layer& layer, const LayerState& state) {
  const std::string prefix = "state." + std::to_string(state.position) + "." + Name(index, "");
  CHECK(Get(file, prefix + "cumulative_length").ints.at(0) == static_cast<int64_t>(state.position));
  CheckWhole(file, prefix + "window", layer.ExportWindow(state));
  if (layer.kind() == LayerKind::kWindow) return;
  CheckCompressor(file, prefix + "compressor.", state.main, layer.main_bias(), layer.ratio(), state.position);
  if (layer.kind() != LayerKind::kCsa) return;
  CheckCompressor(file, prefix + "indexer.", state.index, layer.index_bias(), layer.ratio(), state.position);
}

void CopyFront(const std::vector<float>& from, std::vector<float>& to) {
  REQUIRE(from.size() <= to.size());
  std::copy(from.begin(), from.end(), to.begin());
}

// What a store keeps of a state (reference section 6.1), put into a new one: everything else is lost (NaN).
CompressorState SavedCompressor(const CompressorState& state, CompressorState fresh, uint64_t channels, uint64_t ratio,
                                uint64_t position) {
  fresh.entries = state.entries;
  CopyFront(FirstRows(state.open_values, position % ratio * channels), fresh.open_values);
  CopyFront(FirstRows(state.open_gates, position % ratio * channels), fresh.open_gates);
  if (position >= ratio) {
    fresh.prev_values = state.prev_values;
    fresh.prev_gates = state.prev_gates;
  }
  return fresh;
}

LayerState SavedAndLoaded(const Layer& layer, const LayerState& state) {
  LayerState loaded = layer.NewState();
  loaded.position = state.position;
  layer.ImportWindow(layer.ExportWindow(state), loaded);
  if (layer.ratio() == 0) return loaded;
  loaded.main =
      SavedCompressor(state.main, loaded.main, layer.main_bias().size() / layer.ratio(), layer.ratio(), state.position);
  if (layer.kind() != LayerKind::kCsa) return loaded;
  loaded.index = SavedCompressor(state.index, loaded.index, layer.index_bias().size() / layer.ratio(), layer.ratio(),
                                 state.position);
  return loaded;
}

CompressorState ImportedCompressor(const VectorFile& file, const std::string& prefix, CompressorState fresh,
                                   const std::vector<float>& bias, uint64_t ratio, uint64_t position, bool add_bias) {
  fresh.entries = Get(file, prefix + "compressed_kv").floats;
  CopyFront(Get(file, prefix + "buffer_kv").floats, fresh.open_values);
  CopyFront(OpenRows(Get(file, prefix + "buffer_gate").floats, position % ratio, bias, ratio, add_bias ? 1.0f : 0.0f),
            fresh.open_gates);
  if (const Record* overlap = file.Find(prefix + "overlap_kv")) {
    fresh.prev_values = overlap->floats;
    fresh.prev_gates = Get(file, prefix + "overlap_gate").floats;
  }
  return fresh;
}

// transformers' cache at P as our state. Only for files that store whole tensors.
LayerState Imported(const VectorFile& file, uint64_t index, const Layer& layer, uint64_t position,
                    bool add_bias = true) {
  const std::string prefix = "state." + std::to_string(position) + "." + Name(index, "");
  REQUIRE(Get(file, prefix + "window").stride == 1);
  LayerState state = layer.NewState();
  state.position = position;
  layer.ImportWindow(Get(file, prefix + "window").floats, state);
  if (layer.ratio() == 0) return state;
  state.main = ImportedCompressor(file, prefix + "compressor.", state.main, layer.main_bias(), layer.ratio(), position,
                                  add_bias);
  if (layer.kind() != LayerKind::kCsa) return state;
  state.index =
      ImportedCompressor(file, prefix + "indexer.", state.index, layer.index_bias(), layer.ratio(), position, add_bias);
  return state;
}

// ---------------------------------------------------------------------------------------------------------- runs

LayerState RunCold(const Layer& layer, uint64_t length, LayerOutput& output, const Faults& faults = {}) {
  LayerState state = layer.NewState();
  layer.Step(state, length, output, faults);
  return state;
}

LayerState RunCold(const Layer& layer, uint64_t length) {
  LayerOutput output = layer.NewOutput();
  return RunCold(layer, length, output);
}

// The cuts of the generator: 1, 1, 1, ...; 3, 5, 3, 5, ...; n-1, 1.
std::vector<std::vector<uint64_t>> Cuts(uint64_t length) {
  std::vector<std::vector<uint64_t>> cuts(2);
  cuts[0].assign(length, 1);
  for (uint64_t left = length; left != 0; left -= cuts[1].back()) {
    cuts[1].push_back(std::min<uint64_t>(left, cuts[1].size() % 2 == 0 ? 3 : 5));
  }
  if (length > 1) cuts.push_back({length - 1, 1});
  return cuts;
}

// Runs the cuts; compares the state wherever the file has one, and all outputs at the end.
void CheckCuts(const VectorFile& file, uint64_t index, const Layer& layer, const std::vector<uint64_t>& sizes) {
  const std::vector<uint64_t> lengths = Lengths(file);
  LayerState state = layer.NewState();
  LayerOutput output = layer.NewOutput();
  for (const uint64_t size : sizes) {
    layer.Step(state, size, output);
    if (std::count(lengths.begin(), lengths.end(), state.position) != 0) CheckState(file, index, layer, state);
  }
  CheckOutput(file, index, layer, output, 0, state.position);
}

void CheckContinuation(const VectorFile& file, uint64_t index, const Layer& layer, LayerState state, uint64_t length) {
  const uint64_t start = state.position;
  INFO("resumed at " << start << ", up to " << length);
  LayerOutput output = layer.NewOutput();
  layer.Step(state, length - start, output);
  CheckOutput(file, index, layer, output, start, length);
  CheckState(file, index, layer, state);
}

// Rows of entries (or keys) that differ from the golden ones of the longest length.
std::vector<uint64_t> WrongEntries(const VectorFile& file, uint64_t index, const LayerState& state, bool keys) {
  const std::string name = "state." + std::to_string(state.position) + "." +
                           Name(index, keys ? "indexer.compressed_kv" : "compressor.compressed_kv");
  const Record& want = Get(file, name);
  return CompareRows(want, keys ? state.index.entries : state.main.entries, 0, want.shape.at(0)).wrong_rows;
}

std::vector<uint64_t> Range(uint64_t first, uint64_t last) {
  std::vector<uint64_t> range(last - first);
  std::iota(range.begin(), range.end(), first);
  return range;
}

const std::vector<std::string> kSmallFiles = {"a_all.kvg", "a_select.kvg", "a_model.kvg"};
const std::vector<std::string> kSampledFiles = {"b_widths.kvg", "a_long.kvg"};

}  // namespace

TEST_CASE("generated records have the generator's values") {
  for (const char* name : {"a_all.kvg", "b_widths.kvg"}) {
    CHECK(Get(File(name), "check.generated").floats == Get(File(name), "check.values").floats);
  }
}

TEST_CASE("the frequency tables are transformers'") {
  // Both compute in fp32, theirs with an fp32 power that may be off by an ulp or two: 4 ulp of 2^-24.
  constexpr double kFrequencyTolerance = 4.0 / (1 << 24);
  for (const char* name : {"a_all.kvg", "b_widths.kvg"}) {
    const Config config(File(name));
    for (const kvstrata_kernels* kernels : HostLevels()) {
      for (const bool compress : {false, true}) {
        const Record& want = Get(File(name), compress ? "config.frequencies.compress" : "config.frequencies.main");
        std::vector<float> ours(config.rope_dims / 2);
        REQUIRE(want.floats.size() == ours.size());
        kvstrata_rope_frequencies_args args{};
        args.struct_size = sizeof args;
        args.rope_dims = config.rope_dims;
        args.theta = compress ? 160000.0 : 10000.0;
        args.yarn_factor = compress ? 16.0 : 0.0;
        args.original_length = config.original_length;
        args.beta_fast = 32.0;
        args.beta_slow = 1.0;
        args.frequencies = ours.data();
        REQUIRE(kernels->rope_frequencies(&args, nullptr) == KVSTRATA_KERNELS_OK);
        for (size_t k = 0; k < ours.size(); ++k) {
          INFO(name << ", compress " << compress << ", k " << k << ": " << ours[k] << ", " << want.floats[k]);
          CHECK(std::abs(static_cast<double>(ours[k]) - want.floats[k]) <= kFrequencyTolerance * want.floats[k]);
        }
      }
    }
  }
}

TEST_CASE("most selections are decided, so the comparison says something") {
  for (const char* name : {"a_all.kvg", "a_select.kvg", "a_model.kvg", "b_widths.kvg", "a_long.kvg"}) {
    const Use decided = Decided(File(name), 1);
    const uint64_t tokens = Lengths(File(name)).back();
    uint64_t count = 0;
    for (uint64_t row = 0; row < tokens; ++row) count += decided(row, 0) ? 1 : 0;
    INFO(name << ": " << count << " of " << tokens);
    CHECK(count * 10 >= tokens * 7);
  }
}

TEST_CASE("one call gives the golden outputs and state") {
  for (const std::string& name : kSmallFiles) {
    ForEachLayer(name, [&](uint64_t index, const Layer& layer) {
      for (const uint64_t length : Lengths(File(name))) {
        INFO("length " << length);
        LayerOutput output = layer.NewOutput();
        const LayerState state = RunCold(layer, length, output);
        CheckOutput(File(name), index, layer, output, 0, length);
        CheckState(File(name), index, layer, state);
      }
    });
  }
  for (const std::string& name : kSampledFiles) {
    ForEachLayer(name,
                 [&](uint64_t index, const Layer& layer) { CheckCuts(File(name), index, layer, {layer.tokens()}); });
  }
}

TEST_CASE("a prompt cut into calls gives the golden outputs and state") {
  for (const std::string& name : kSmallFiles) {
    ForEachLayer(name, [&](uint64_t index, const Layer& layer) {
      for (const uint64_t length : Lengths(File(name))) {
        for (const std::vector<uint64_t>& sizes : Cuts(length)) CheckCuts(File(name), index, layer, sizes);
      }
    });
  }
  for (const std::string& name : kSampledFiles) {
    ForEachLayer(name, [&](uint64_t index, const Layer& layer) {
      for (const std::vector<uint64_t>& sizes : Cuts(layer.tokens())) {
        // Thousands of calls of one token are seconds under a sanitizer and say nothing that the short files do not.
        if (sizes.size() <= 2000) CheckCuts(File(name), index, layer, sizes);
      }
    });
  }
}

TEST_CASE("saved state continues as if never interrupted") {
  for (const std::string& name : kSmallFiles) {
    ForEachLayer(name, [&](uint64_t index, const Layer& layer) {
      for (const uint64_t start : Lengths(File(name))) {
        const LayerState saved = SavedAndLoaded(layer, RunCold(layer, start));
        for (const uint64_t length : Lengths(File(name))) {
          if (length > start) CheckContinuation(File(name), index, layer, saved, length);
        }
      }
    });
  }
  const std::map<std::string, std::vector<uint64_t>> starts = {{"b_widths.kvg", {5, 127, 128, 129, 255}},
                                                               {"a_long.kvg", {2050}}};
  for (const auto& [name, positions] : starts) {
    ForEachLayer(name, [&, &name = name, &positions = positions](uint64_t index, const Layer& layer) {
      LayerState state = layer.NewState();
      LayerOutput output = layer.NewOutput();
      for (const uint64_t start : positions) {
        layer.Step(state, start - state.position, output);
        CheckContinuation(File(name), index, layer, SavedAndLoaded(layer, state), layer.tokens());
      }
    });
  }
}

TEST_CASE("transformers' own cache continues in our kernels") {
  for (const char* name : {"a_all.kvg", "a_select.kvg"}) {
    ForEachLayer(name, [&](uint64_t index, const Layer& layer) {
      for (const uint64_t start : Lengths(File(name))) {
        if (start == layer.tokens()) continue;
        CheckContinuation(File(name), index, layer, Imported(File(name), index, layer, start), layer.tokens());
      }
    });
  }
}

TEST_CASE("control: without the overlap exactly the first entry and key after the resume are wrong") {
  constexpr uint64_t kStart = 128;
  ForEachLayer("b_widths.kvg", [&](uint64_t index, const Layer& layer) {
    if (layer.kind() != LayerKind::kCsa) return;
    const VectorFile& file = File("b_widths.kvg");
    LayerState state = SavedAndLoaded(layer, RunCold(layer, kStart));
    for (CompressorState* compressor : {&state.main, &state.index}) {
      std::fill(compressor->prev_values.begin(), compressor->prev_values.end(), 0.0f);
      std::fill(compressor->prev_gates.begin(), compressor->prev_gates.end(), -std::numeric_limits<float>::infinity());
    }
    LayerOutput output = layer.NewOutput();
    layer.Step(state, layer.tokens() - kStart, output);
    const std::vector<uint64_t> first_entry = {kStart / layer.ratio()};
    CHECK(WrongEntries(file, index, state, false) == first_entry);
    CHECK(WrongEntries(file, index, state, true) == first_entry);
    const Comparison result = CompareRows(Get(file, "run." + Name(index, "output")), output.output, kStart,
                                          layer.tokens(), Decided(file, index));
    REQUIRE(!result.wrong_rows.empty());
    // The query that closes the wrong entry is the first that can see it.
    CHECK(result.wrong_rows.front() >= kStart + layer.ratio() - 1);
  });
}

TEST_CASE("control: a position bias counted from the resume spoils every later entry") {
  constexpr uint64_t kStart = 5;
  ForEachLayer("a_all.kvg", [&](uint64_t index, const Layer& layer) {
    if (layer.ratio() == 0) return;
    LayerState state = SavedAndLoaded(layer, RunCold(layer, kStart));
    LayerOutput output = layer.NewOutput();
    layer.Step(state, layer.tokens() - kStart, output, {.position_bias_shift = kStart});
    const std::vector<uint64_t> later = Range(kStart / layer.ratio(), layer.entries());
    CHECK(WrongEntries(File("a_all.kvg"), index, state, false) == later);
    if (layer.kind() == LayerKind::kCsa) CHECK(WrongEntries(File("a_all.kvg"), index, state, true) == later);
  });
}

TEST_CASE("control: an imported open block without its position bias spoils the entry it closes") {
  constexpr uint64_t kStart = 7;
  ForEachLayer("a_all.kvg", [&](uint64_t index, const Layer& layer) {
    if (layer.ratio() == 0) return;
    LayerState state = Imported(File("a_all.kvg"), index, layer, kStart, false);
    LayerOutput output = layer.NewOutput();
    layer.Step(state, layer.tokens() - kStart, output);
    // With overlap the same tokens' gates are used once more, in the next entry.
    const uint64_t closing = kStart / layer.ratio();
    const std::vector<uint64_t> spoilt = Range(closing, closing + (layer.kind() == LayerKind::kCsa ? 2 : 1));
    CHECK(WrongEntries(File("a_all.kvg"), index, state, false) == spoilt);
    if (layer.kind() == LayerKind::kCsa) CHECK(WrongEntries(File("a_all.kvg"), index, state, true) == spoilt);
  });
}

TEST_CASE("control: a window off by one is wrong for every query whose window is full") {
  const uint64_t window = Config(File("a_all.kvg")).window;
  for (const int delta : {-1, 1}) {
    ForEachLayer("a_all.kvg", [&](uint64_t index, const Layer& layer) {
      INFO("window of W " << delta);
      LayerOutput output = layer.NewOutput();
      RunCold(layer, layer.tokens(), output, {.window_delta = delta});
      const Comparison result =
          CompareRows(Get(File("a_all.kvg"), "run." + Name(index, "attention")), output.attention, 0, layer.tokens());
      CHECK(result.wrong_rows == Range(delta < 0 ? window - 1 : window, layer.tokens()));
    });
  }
}
