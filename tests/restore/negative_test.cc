// SPDX-License-Identifier: Apache-2.0
// Negative controls: a restore that leaves out or mixes up what it must not is seen in the logits. Without these the
// equalities of boundary_test.cc would prove little.
#include <cstdint>
#include <span>
#include <vector>

#include "tests/restore/rig.h"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::resume_mode;
using mini_engine::Fault;
using restore_test::Allow;
using restore_test::ColdLogits;
using restore_test::Rig;
using restore_test::RigOptions;
using restore_test::SameBits;
using restore_test::Served;
using restore_test::ServeOptions;
using restore_test::StoreKind;
using restore_test::TestTokens;
using restore_test::TinyModel;

RigOptions FileStore(uint32_t policy) {
  RigOptions options;
  options.store = StoreKind::kFile;
  options.snapshot_policy = policy;
  return options;
}

// Logits at `length` after a restore from the snapshot at `stored`, with a fault.
std::vector<float> RestoredWith(Fault fault, uint64_t stored, uint64_t length) {
  const std::vector<int32_t> tokens = TestTokens(length);
  const std::span<const int32_t> all = tokens;
  Rig rig(FileStore(0));
  ServeOptions storing;
  storing.snapshots_at = {stored};
  rig.Serve(all.first(stored), storing);
  rig.Restart();
  ServeOptions options;
  options.allowed_modes = Allow({resume_mode::snapshot});
  options.store = false;
  options.fault = fault;
  const Served warm = rig.Serve(all, options);
  REQUIRE(warm.usable_tokens == stored);
  return warm.logits;
}

TEST_CASE("the control of the controls: without a fault it is exact") {
  for (const uint64_t stored : {48u, 50u}) {
    CAPTURE(stored);
    CHECK(SameBits(RestoredWith(Fault::kNone, stored, 70), ColdLogits(TinyModel(), TestTokens(70))));
  }
}

TEST_CASE("the carry left out, at a block boundary and inside a block") {
  for (const uint64_t stored : {48u, 50u}) {
    CAPTURE(stored);
    CHECK(!SameBits(RestoredWith(Fault::kDropOverlap, stored, 70), ColdLogits(TinyModel(), TestTokens(70))));
  }
}

TEST_CASE("window rows in the wrong order") {
  // Not at 49: that query sees all seven rows, and a softmax does not mind their order. The next one loses the oldest.
  CHECK(!SameBits(RestoredWith(Fault::kReverseWindow, 48, 50), ColdLogits(TinyModel(), TestTokens(50))));
  CHECK(!SameBits(RestoredWith(Fault::kReverseWindow, 48, 70), ColdLogits(TinyModel(), TestTokens(70))));
}

TEST_CASE("position bias off by one after the resume") {
  for (const uint64_t stored : {48u, 50u}) {
    CAPTURE(stored);
    CHECK(!SameBits(RestoredWith(Fault::kShiftPositionBias, stored, 70), ColdLogits(TinyModel(), TestTokens(70))));
  }
}

TEST_CASE("a full replay of one token less is not exact, of the planned length it is") {
  const uint64_t hit = 64;
  const std::vector<int32_t> tokens = TestTokens(hit + 1);
  Rig rig(FileStore(KVSTRATA_SNAPSHOT_NEVER));
  rig.Serve(tokens);
  for (const uint64_t skipped : {0u, 1u}) {
    CAPTURE(skipped);
    rig.Restart();
    ServeOptions options;
    options.allowed_modes = Allow({resume_mode::full_replay});
    options.store = false;
    options.skipped_replay_tokens = skipped;
    const Served warm = rig.Serve(tokens, options);
    REQUIRE(warm.usable_tokens == hit);
    CHECK(SameBits(warm.logits, ColdLogits(rig.model(), tokens)) == (skipped == 0));
  }
}

}  // namespace
