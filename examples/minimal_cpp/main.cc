// SPDX-License-Identifier: Apache-2.0
// Stores the rows of a prompt, one of 64 bytes per token, and restores those of a longer prompt's first blocks.
#include <cstdio>
#include <cstdlib>
#include <kvstrata/kvstrata.hpp>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

template <class T>
T must(kvstrata::result<T> result) {
  if (!result) std::exit((std::puts(result.error().c_str()), 1));
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

int main() {
  constexpr std::uint32_t row_bytes = 64;
  std::vector<std::int32_t> tokens(400);
  std::iota(tokens.begin(), tokens.end(), 1000);
  std::vector<unsigned char> rows(300 * row_bytes, 7), restored(400 * row_bytes);

  // A directory keeps what is stored beyond the process: cache_options::path. Without it: in memory.
  kvstrata::cache_options options;
  options.capacity_bytes = 64 << 20;
  auto cache = must(kvstrata::cache::open(options));
  auto layout = must(kvstrata::layout_builder().block_tokens(128).rows(kvstrata::role::other, 0, 1, row_bytes).build());
  auto identity = kvstrata::identity().set("model.weights", "a digest of the weights").set("tenant", "");
  auto name_space = must(cache.open_namespace(layout, identity));

  // Store: the rows of the first 300 tokens have been computed; two blocks of 128 are complete.
  auto writer = must(name_space.open_writer());
  must(writer.set_source(kvstrata::buffer::linear(0, rows)));
  must(writer.advance(kvstrata::token_view(tokens).first(300), 300));
  must(writer.commit());

  // Restore for a prompt of 400 tokens.
  auto match = must(name_space.lookup(tokens));
  auto plan = must(match.plan());
  must(plan.start(std::vector{kvstrata::buffer::linear(0, restored)}));
  auto result = must(plan.wait());
  std::printf("%u of 400 tokens need not be computed\n", static_cast<unsigned>(result.usable_tokens));
  return result.usable_tokens == 256 && restored[255 * row_bytes] == 7 ? 0 : 1;
}
