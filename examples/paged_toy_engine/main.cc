// SPDX-License-Identifier: Apache-2.0
// How an engine with page tables uses kvstrata, from its layout to a committed answer. README.md beside this file goes
// through it step by step, with the code of this file.
//
// Two engines with memory of their own play a first and a later process: the first computes a prompt and stores it, the
// second restores it into other pages, goes on with a longer prompt, and must come to the same logits as an engine that
// has computed everything.
#include <cstdio>
#include <cstdlib>
#include <kvstrata/kvstrata.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/paged_toy_engine/engine.h"

namespace {

using toy::PagedEngine;

template <class T>
T must(kvstrata::result<T> result) {
  if (!result) std::exit((std::puts(result.error().c_str()), 1));
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

kvstrata::layout describe_layout() {
  kvstrata::layout_builder layout;
  layout.block_tokens(64);
  layout.replay(kvstrata::replay_mode::full, toy::kWindow, toy::kLayers);
  for (std::uint32_t layer = 0; layer < toy::kLayers; ++layer) {
    layout.rows(kvstrata::role::csa_entry, layer, toy::kRatio, toy::kEntryBytes);  // stream 2*layer
    layout.window(layer, toy::kWindow, toy::kCodeBytes);                           // stream 2*layer + 1
  }
  return must(layout.build());
}

kvstrata::identity describe_model(const char* tenant) {
  kvstrata::identity identity;
  identity.set("model.weights", "sha256 of the weights").set("model.quantization", "none").set("rope", "none");
  identity.set("packing", "32 codes, 4 scale bytes").set("kernel.numerics", "integers").set("adapter", "");
  identity.set("engine.state_version", "toy 1").set("tenant", tenant);
  return identity;
}

std::vector<kvstrata::buffer> describe_memory(PagedEngine& engine) {
  std::vector<kvstrata::buffer> buffers;
  for (std::uint32_t layer = 0; layer < toy::kLayers; ++layer) {
    const std::vector<std::int32_t>& table = engine.page_table(layer);
    kvstrata::buffer entries = kvstrata::buffer::pages(2 * layer, engine.page_memory(), toy::kRowsPerPage,
                                                       toy::kPageBytes, table.data(), table.size());
    entries.column(toy::kCodeBytes, 0, toy::kCodeBytes);
    entries.column(toy::kScaleBytes, toy::kRowsPerPage * toy::kCodeBytes, toy::kScaleBytes);
    buffers.push_back(entries);
    buffers.push_back(kvstrata::buffer::ring(2 * layer + 1, engine.window(layer), toy::kWindow));
  }
  return buffers;
}

struct Answer {
  std::uint64_t logits = 0;
  kvstrata::plan_result resumed{};
};

kvstrata::plan_result restore(kvstrata::match& match, PagedEngine& engine, kvstrata::restore_plan* plan) {
  *plan = must(match.plan());
  std::vector<kvstrata::buffer> destinations;
  for (const kvstrata::buffer& buffer : describe_memory(engine)) {
    for (const kvstrata::plan_segment& segment : must(plan->segments())) {
      if (segment.stream == buffer.stream()) destinations.push_back(buffer);
    }
  }
  must(plan->start(destinations));
  return must(plan->wait());
}

Answer serve(const kvstrata::name_space& space, PagedEngine& engine, const std::vector<std::int32_t>& prompt) {
  if (!engine.allocate_pages(prompt.size())) std::exit((std::puts("no pages"), 1));

  kvstrata::lookup_options options;
  options.allowed_modes = kvstrata::mode_bit(kvstrata::resume_mode::snapshot) |
                          kvstrata::mode_bit(kvstrata::resume_mode::snapshot_replay) |
                          kvstrata::mode_bit(kvstrata::resume_mode::full_replay);
  kvstrata::match match = must(space.lookup(prompt, options));
  kvstrata::restore_plan plan;
  Answer answer;
  answer.resumed = restore(match, engine, &plan);

  kvstrata::writer_options continued;
  continued.restored = &plan;
  kvstrata::writer writer = must(space.open_writer(&match, continued));
  must(writer.set_sources(describe_memory(engine)));
  std::vector<std::uint64_t> stops = must(writer.snapshot_positions(prompt));
  if (stops.empty() || stops.back() != prompt.size()) stops.push_back(prompt.size());

  answer.logits =
      engine.run(prompt, answer.resumed.replay_from, answer.resumed.usable_tokens, answer.resumed.write_floor);
  std::uint64_t computed = answer.resumed.usable_tokens;
  for (const std::uint64_t stop : stops) {
    answer.logits = engine.run(prompt, computed, stop);
    must(writer.advance(kvstrata::token_view(prompt).first(stop).subview(computed), stop));
    computed = stop;
  }

  kvstrata::commit_options end;
  end.output_end = true;
  must(writer.commit(end));
  return answer;
}

std::vector<std::int32_t> make_prompt(std::size_t tokens) {
  std::vector<std::int32_t> prompt(tokens);
  for (std::size_t i = 0; i < tokens; ++i) prompt[i] = static_cast<std::int32_t>(i * 31 % 1009);
  return prompt;
}

}  // namespace

int main() {
  const std::vector<std::int32_t> turn1 = make_prompt(300);
  const std::vector<std::int32_t> turn2 = make_prompt(420);  // turn 1, the answer, and the next question
  std::vector<std::int32_t> other = make_prompt(420);
  other[350] += 1;

  kvstrata::cache_options options;
  options.capacity_bytes = 64 << 20;
  kvstrata::cache cache = must(kvstrata::cache::open(options));
  kvstrata::name_space space = must(cache.open_namespace(describe_layout(), describe_model("nobody")));

  PagedEngine first(100, false);
  const Answer cold = serve(space, first, turn1);

  bool same = cold.resumed.usable_tokens == 0;
  for (const std::vector<std::int32_t>& prompt : {turn2, other}) {
    PagedEngine second(100, true);
    PagedEngine reference(100, false);
    const Answer warm = serve(space, second, prompt);
    reference.allocate_pages(prompt.size());
    const std::uint64_t expected = reference.run(prompt, 0, prompt.size());
    same = same && warm.logits == expected && warm.resumed.usable_tokens >= 300;
    std::printf("%u of %u tokens restored, run from %u: %s\n", static_cast<unsigned>(warm.resumed.usable_tokens),
                static_cast<unsigned>(prompt.size()), static_cast<unsigned>(warm.resumed.replay_from),
                warm.logits == expected ? "the logits are those of a cold run" : "THE LOGITS DIFFER");
  }
  return same ? 0 : 1;
}
