// SPDX-License-Identifier: Apache-2.0
#include "tests/restore/rig.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "examples/mini_engine/cache_binding.h"

namespace restore_test {
namespace {

template <class T>
T Need(kvstrata::result<T> result, const char* what) {
  if (!result) {
    const kvstrata::error& e = result.error();
    throw std::runtime_error(std::string(what) + ": " + kvstrata::status_name(e.code()) + ", " +
                             std::string(e.field()) + ": " + std::string(e.message()));
  }
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

std::string TemporaryDirectory() {
  std::string path = (std::filesystem::temp_directory_path() / "kvstrata-restore-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make a temporary directory");
  return path;
}

}  // namespace

const char* NameOf(StoreKind kind) {
  switch (kind) {
    case StoreKind::kMemory: return "memory";
    case StoreKind::kFile: return "file";
    case StoreKind::kUser: return "user";
  }
  return "?";
}

class Shelf {
 public:
  using Key = std::array<unsigned char, 32>;
  struct Record {
    std::vector<unsigned char> payload, meta;
  };
  std::mutex mutex;
  std::map<Key, Record> records;
};

namespace {

// The user's own storage: a map that outlives the cache, as another machine would.
class ShelfStorage : public kvstrata::synchronous_storage<ShelfStorage> {
 public:
  explicit ShelfStorage(std::shared_ptr<Shelf> shelf) : shelf_(std::move(shelf)) {}

  std::uint64_t capabilities() const { return KVSTRATA_STORAGE_DURABLE_SYNC | KVSTRATA_STORAGE_PERSISTENT; }

  kvstrata::errc put(const kvstrata::storage_request& request, std::int64_t&) {
    Shelf::Record record;
    for (std::size_t i = 0; i < request.part_count(); ++i) Append(record.payload, request.part(i));
    Append(record.meta, request.meta());
    const std::lock_guard lock(shelf_->mutex);
    shelf_->records[KeyOf(request.key())] = std::move(record);
    return kvstrata::errc::ok;
  }
  kvstrata::errc get(const kvstrata::storage_request& request, std::int64_t&) {
    const std::lock_guard lock(shelf_->mutex);
    const auto found = shelf_->records.find(KeyOf(request.key()));
    if (found == shelf_->records.end()) return kvstrata::errc::not_found;
    const std::vector<unsigned char>& payload = found->second.payload;
    const kvstrata::mutable_byte_view to = request.destination();
    if (request.offset() > payload.size() || to.size() > payload.size() - request.offset()) {
      return kvstrata::errc::corrupt;
    }
    if (to.size() != 0) std::memcpy(to.data(), payload.data() + request.offset(), to.size());
    return kvstrata::errc::ok;
  }
  kvstrata::errc stat(const kvstrata_key& key, bool& exists, std::uint64_t& payload_bytes) {
    const std::lock_guard lock(shelf_->mutex);
    const auto found = shelf_->records.find(KeyOf(key));
    exists = found != shelf_->records.end();
    payload_bytes = exists ? found->second.payload.size() : 0;
    return kvstrata::errc::ok;
  }
  kvstrata::errc remove(const kvstrata_key& key) {
    const std::lock_guard lock(shelf_->mutex);
    shelf_->records.erase(KeyOf(key));
    return kvstrata::errc::ok;
  }
  kvstrata::errc sync() { return kvstrata::errc::ok; }
  // The cursor is the number of entries given; nothing is removed while a cache opens.
  kvstrata::errc list(std::uint64_t& cursor, kvstrata::storage_listing& into) {
    const std::lock_guard lock(shelf_->mutex);
    auto at = shelf_->records.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(cursor, shelf_->records.size())));
    for (; at != shelf_->records.end() && !into.full(); ++at) {
      kvstrata_key key{};
      std::copy(at->first.begin(), at->first.end(), key.bytes);
      into.add(key, at->second.payload.size(), at->second.payload.size() + at->second.meta.size(), at->second.meta);
    }
    cursor = at == shelf_->records.end() ? 0 : cursor + into.size();
    return kvstrata::errc::ok;
  }

 private:
  static Shelf::Key KeyOf(const kvstrata_key& key) {
    Shelf::Key out;
    std::copy(std::begin(key.bytes), std::end(key.bytes), out.begin());
    return out;
  }
  static void Append(std::vector<unsigned char>& to, kvstrata::byte_view from) {
    to.insert(to.end(), from.data(), from.data() + from.size());
  }
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace

uint32_t Allow(std::initializer_list<kvstrata::resume_mode> modes) {
  uint32_t bits = 0;
  for (const kvstrata::resume_mode mode : modes) bits |= kvstrata::mode_bit(mode);
  return bits;
}

Rig::Rig(const RigOptions& options)
    : options_(options),
      model_(options.model != nullptr ? options.model : TinyModel()),
      shelf_(std::make_shared<Shelf>()) {
  if (options_.store == StoreKind::kFile && options_.directory.empty()) {
    options_.directory = TemporaryDirectory();
    own_directory_ = true;
  }
  Open();
}

Rig::~Rig() {
  name_space_.reset();
  cache_.reset();
  std::error_code ignored;
  if (own_directory_) std::filesystem::remove_all(options_.directory, ignored);
}

void Rig::Restart() {
  if (options_.store != StoreKind::kMemory) {
    name_space_.reset();
    Need(cache_.close(), "close");
    cache_.reset();
  }
  Open();
}

void Rig::Open() {
  mini_engine::EngineOptions engine;
  engine.max_tokens = options_.max_tokens;
  engine.chunk_tokens = options_.chunk_tokens;
  engine_ = std::make_unique<mini_engine::Engine>(model_, engine);
  if (cache_) return;
  kvstrata::cache_options cache;
  cache.capacity_bytes = uint64_t{256} << 20;
  if (options_.store == StoreKind::kUser) {
    kvstrata::storage_adapter<ShelfStorage> adapter(std::make_unique<ShelfStorage>(shelf_));
    cache_ = Need(kvstrata::cache::open(cache, adapter), "open");
  } else {
    cache.path = options_.directory;
    cache_ = Need(kvstrata::cache::open(cache), "open");
  }
  const kvstrata::layout layout = Need(mini_engine::MakeLayout(model_->config), "layout");
  kvstrata::namespace_options policy;
  policy.snapshot_policy = options_.snapshot_policy;
  name_space_ = Need(cache_.open_namespace(layout, mini_engine::MakeIdentity(*model_, "tests"), policy), "namespace");
}

mini_engine::Resume Rig::Restore(kvstrata::match& match, kvstrata::restore_plan& plan, Served& served) {
  const kvstrata::match_info info = Need(match.info(), "match");
  served.reason = static_cast<kvstrata::reason>(info.reason);
  served.matched_tokens = info.matched_tokens;
  if (info.usable_tokens == 0) return {};
  plan = Need(match.plan(), "plan");
  Need(plan.start(mini_engine::MakeBuffers(*engine_)), "start");
  const kvstrata::plan_result done = Need(plan.wait(), "wait");
  if (done.state != KVSTRATA_PLAN_COMPLETE) throw std::runtime_error("the restore did not complete");
  served.mode = static_cast<kvstrata::resume_mode>(done.mode);
  served.usable_tokens = done.usable_tokens;
  served.replay_from = done.replay_from;
  return mini_engine::ToResume(done);
}

Served Rig::Serve(std::span<const int32_t> prompt, const ServeOptions& options) {
  Served served;
  kvstrata::lookup_options lookup;
  lookup.allowed_modes = options.allowed_modes;
  kvstrata::match match = Need(name_space_.lookup({prompt.data(), prompt.size()}, lookup), "lookup");
  kvstrata::restore_plan plan;
  mini_engine::Resume resume = Restore(match, plan, served);
  resume.replay_from += options.skipped_replay_tokens;
  engine_->BeginRestored(resume, options.fault);
  if (options.store) {
    RunAndStore(prompt, plan, resume.usable_tokens, options);
  } else {
    engine_->Run(prompt.subspan(engine_->position()));
  }
  served.logits = engine_->logits();
  return served;
}

void Rig::RunAndStore(std::span<const int32_t> prompt, const kvstrata::restore_plan& plan, uint64_t from,
                      const ServeOptions& options) {
  kvstrata::writer_options writing;
  writing.restored = &plan;
  writing.no_snapshots = !options.snapshots;
  kvstrata::writer writer = Need(name_space_.open_writer(nullptr, writing), "writer");
  Need(writer.set_sources(mini_engine::MakeBuffers(*engine_)), "sources");
  const kvstrata::token_view tokens(prompt.data(), prompt.size());
  std::vector<uint64_t> stops = options.snapshots_at;
  if (options.snapshots) {
    for (const uint64_t wanted : Need(writer.snapshot_positions(tokens), "snapshot positions")) stops.push_back(wanted);
  }
  stops.push_back(prompt.size());
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  kvstrata::token_view fresh = tokens.subview(from);
  for (const uint64_t stop : stops) {
    engine_->Run(prompt.subspan(engine_->position(), stop - engine_->position()));
    Need(writer.advance(fresh, stop), "advance");
    fresh = {};
    const auto& at = options.snapshots_at;
    if (std::find(at.begin(), at.end(), stop) != at.end()) Need(writer.snapshot(), "snapshot");
  }
  const kvstrata::commit_info done = Need(writer.commit(), "commit");
  if (done.blocks_dropped != 0 || done.snapshots_dropped != 0) throw std::runtime_error("something was not stored");
}

std::vector<int32_t> TestTokens(size_t count, uint32_t seed) {
  std::vector<int32_t> out(count);
  for (int32_t& token : out) {
    seed = seed * 1664525u + 1013904223u;
    token = static_cast<int32_t>(seed >> 24);
  }
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

const std::shared_ptr<const mini_engine::Model>& TinyModel() {
  static const auto model =
      std::make_shared<const mini_engine::Model>(mini_engine::TinyConfig(), KVSTRATA_KERNELS_LEVEL_REFERENCE);
  return model;
}

ColdRun::ColdRun(const std::shared_ptr<const mini_engine::Model>& model, std::vector<int32_t> tokens)
    : tokens_(std::move(tokens)) {
  mini_engine::EngineOptions options;
  options.max_tokens = tokens_.size();
  engine_ = std::make_unique<mini_engine::Engine>(model, options);
}

const std::vector<float>& ColdRun::At(uint64_t length) {
  while (logits_.size() < length) {
    engine_->Run({&tokens_[logits_.size()], 1});
    logits_.push_back(engine_->logits());
  }
  return logits_[length - 1];
}

std::vector<std::vector<float>> ColdLogits(const std::shared_ptr<const mini_engine::Model>& model,
                                           std::span<const int32_t> tokens, std::span<const uint64_t> lengths) {
  mini_engine::EngineOptions options;
  options.max_tokens = tokens.size();
  mini_engine::Engine engine(model, options);
  std::vector<std::vector<float>> out;
  for (const uint64_t length : lengths) {
    engine.Run(tokens.subspan(engine.position(), length - engine.position()));
    out.push_back(engine.logits());
  }
  return out;
}

std::vector<float> ColdLogits(const std::shared_ptr<const mini_engine::Model>& model, std::span<const int32_t> tokens) {
  const uint64_t length = tokens.size();
  return ColdLogits(model, tokens, {&length, 1}).front();
}

}  // namespace restore_test
