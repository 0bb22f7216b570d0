// SPDX-License-Identifier: Apache-2.0
// The cases of call_cost.py through the C++ headers.
//
// usage: call_cost_cpp lookup|miss|restore|pinned_hit COUNT
#include <cstdlib>
#include <kvstrata/kvstrata.hpp>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t kTokens = 2048, kRowBytes = 16;

template <class T>
T must(kvstrata::result<T> result) {
  if (!result) std::exit(1);
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<std::int32_t> ids(kTokens + 1);
  for (std::uint32_t i = 0; i <= kTokens; ++i) ids[i] = static_cast<std::int32_t>(i * 3);
  const std::vector<std::int32_t> others(kTokens + 1, 7);
  std::vector<unsigned char> rows(kTokens * kRowBytes, 5);
  kvstrata::cache_options options;
  options.capacity_bytes = 64 << 20;
  auto cache = must(kvstrata::cache::open(options));
  auto layout = must(kvstrata::layout_builder().block_tokens(64).rows(kvstrata::role::other, 0, 1, kRowBytes).build());
  auto space = must(cache.open_namespace(layout, kvstrata::identity().set("model.weights", "w").set("tenant", "")));
  auto writer = must(space.open_writer());
  must(writer.set_source(kvstrata::buffer::linear(0, rows)));
  must(writer.advance(kvstrata::token_view(ids).first(kTokens), kTokens));
  must(writer.commit());

  const std::string_view what = argv[1];
  const std::uint64_t expected = what == "miss" ? 0 : kTokens;
  for (long i = std::atol(argv[2]); i > 0; --i) {
    auto match = must(space.lookup(what == "miss" ? others : ids));
    if (what == "restore") {
      auto plan = must(match.plan());
      must(plan.start(std::vector{kvstrata::buffer::linear(0, rows)}));
      if (must(plan.wait()).usable_tokens != expected) return 1;
    }
    if (what == "pinned_hit") {
      const auto pin = must(match.pin());
      if (must(pin.info()).end_token != expected || must(pin.range(0)).bytes != rows.size()) return 1;
    }
    if (must(match.info()).usable_tokens != expected) return 1;
  }
  return 0;
}
