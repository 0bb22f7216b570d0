// SPDX-License-Identifier: Apache-2.0
// An engine on a GPU stores a prompt's rows of DeepSeek-V4-Flash out of paged device memory, and another one gets them
// back into pages of its own, layer by layer, on its own stream, and compares every byte. Without a GPU the program
// says what is missing and ends with 77.
//
//   paged_gpu_engine [DIRECTORY]      where to store; without one, in memory
#include <cuda_runtime_api.h>
#include <kvstrata/cuda.h>

#include <cstdio>
#include <cstdlib>
#include <kvstrata/kvstrata.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/paged_gpu_engine/pages.h"

namespace {

constexpr int kSkipped = 77;
constexpr std::uint64_t kTokens = 16'384;

template <class T>
T must(kvstrata::result<T> result) {
  if (!result) std::exit((std::puts(result.error().c_str()), 1));
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

kvstrata::identity describe_model() {
  kvstrata::identity identity;
  for (const char* field : {"model.weights", "model.quantization", "rope", "packing", "kernel.numerics"}) {
    identity.set(field, "pretended");
  }
  identity.set("adapter", "").set("engine.state_version", "1").set("tenant", "nobody");
  return identity;
}

std::vector<kvstrata::buffer> describe_memory(std::vector<gpu::PagedStream>& streams) {
  std::vector<kvstrata::buffer> buffers;
  for (gpu::PagedStream& stream : streams) buffers.push_back(stream.describe());
  return buffers;
}

// What the engine computes is copied out of its pages behind the kernels on `stream`.
void store(const kvstrata::name_space& space, const std::vector<std::int32_t>& prompt,
           std::vector<gpu::PagedStream>& pages, cudaStream_t stream) {
  kvstrata::writer_options options;
  options.no_snapshots = true;
  options.stream = stream;
  options.wait_ms = 60'000;
  kvstrata::writer writer = must(space.open_writer(nullptr, options));
  must(writer.set_sources(describe_memory(pages)));
  must(writer.advance(kvstrata::token_view(prompt).first(kTokens), kTokens));
  must(writer.commit({}));
}

// Layers that are ready may be used on `stream` while later ones are still read.
bool restore(const kvstrata::name_space& space, const std::vector<std::int32_t>& prompt,
             std::vector<gpu::PagedStream>& pages, cudaStream_t stream) {
  kvstrata::lookup_options lookup;
  lookup.allowed_modes = kvstrata::mode_bit(kvstrata::resume_mode::full_replay);
  kvstrata::match match = must(space.lookup(prompt, lookup));
  kvstrata::plan_options options;
  options.early_release = true;
  options.stream = stream;
  kvstrata::restore_plan plan = must(match.plan(options));
  must(plan.start(describe_memory(pages)));

  bool same = true;
  std::uint64_t bytes = 0;
  for (const gpu::PagedStream& one : pages) {
    // All layers of this model have streams, so those up to this one are the leading layer() + 1.
    must(plan.wait_layers(one.layer() + 1));
    same = same && one.is_what_was_computed(stream);
    bytes += one.bytes();
  }
  const kvstrata::plan_result result = must(plan.wait());
  std::printf("%llu tokens, %.1f MB restored into device pages, layer by layer: %s\n",
              static_cast<unsigned long long>(result.usable_tokens), static_cast<double>(bytes) / 1e6,
              same ? "every byte is what was stored" : "BYTES DIFFER");
  return same && result.usable_tokens == kTokens;
}

}  // namespace

int main(int argc, char** argv) {
  kvstrata_error error{};
  error.struct_size = sizeof error;
  if (kvstrata_cuda_available(0, &error) != KVSTRATA_OK) {
    std::printf("no device: %s\n", error.message);
    return kSkipped;
  }
  gpu::must_work(cudaSetDevice(0), "cudaSetDevice");
  cudaStream_t stream = nullptr;
  gpu::must_work(cudaStreamCreate(&stream), "cudaStreamCreate");

  kvstrata_device device{};
  device.struct_size = sizeof device;
  if (kvstrata_cuda_device(0, nullptr, &device, &error) != KVSTRATA_OK) return (std::puts(error.message), 1);
  kvstrata::cache_options options;
  options.path = argc > 1 ? argv[1] : "";
  options.capacity_bytes = 1 << 30;
  options.device = &device;  // the cache's own from here on
  kvstrata::cache cache = must(kvstrata::cache::open(options));
  const kvstrata::layout model = must(kvstrata::layout::from_preset("deepseek-v4-flash"));
  kvstrata::name_space space = must(cache.open_namespace(model, describe_model()));

  std::vector<std::int32_t> prompt(kTokens + 1);  // one token more: the last one is always run
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * 31 % 1009);
  std::vector<gpu::PagedStream> first = gpu::make_pages(model, kTokens, 1);
  for (gpu::PagedStream& pages : first) pages.compute();
  store(space, prompt, first, stream);

  std::vector<gpu::PagedStream> second = gpu::make_pages(model, kTokens, 2);
  const bool same = restore(space, prompt, second, stream);
  gpu::must_work(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return same ? 0 : 1;
}
