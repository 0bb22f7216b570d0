// SPDX-License-Identifier: Apache-2.0
// Stores the rows of 300 tokens, one of 64 bytes each, and restores those of a longer prompt's first blocks.
#include <cstdio>
#include <kvstrata/kvstrata.hpp>
#include <vector>

int main() {
  std::vector<std::int32_t> prompt(400, 7);
  std::vector<unsigned char> rows(300 * 64, 1), restored(400 * 64);
  kvstrata::cache_options options;  // .path = a directory: for good
  options.capacity_bytes = 64 << 20;
  auto cache = kvstrata::cache::open(options).value();
  auto layout = kvstrata::layout_builder().block_tokens(128).rows(kvstrata::role::other, 0, 1, 64).build().value();
  auto model = kvstrata::identity().set("model.weights", "digest").set("tenant", "");
  auto space = cache.open_namespace(layout, model).value();

  auto writer = space.open_writer().value();
  if (!writer.set_source(kvstrata::buffer::linear(0, rows))) return 1;
  if (!writer.advance(kvstrata::token_view(prompt).first(300), 300) || !writer.commit()) return 1;

  auto match = space.lookup(prompt).value();
  auto plan = match.plan().value();
  if (!plan.start(std::vector{kvstrata::buffer::linear(0, restored)})) return 1;
  const auto result = plan.wait().value();
  std::printf("%u of 400 tokens need not be computed\n", static_cast<unsigned>(result.usable_tokens));
  return result.usable_tokens == 256 && restored[255 * 64] == 1 ? 0 : 1;
}
