// SPDX-License-Identifier: Apache-2.0
// Pin handles.
#include <memory>
#include <string>
#include <utility>

#include "capi/handles.h"
#include "capi/struct_reader.h"

namespace kvstrata::capi {
namespace {

// Also of a pin whose cache is closed; but not in a forked child.
absl::Status CheckPin(const kvstrata_pin* pin) {
  if (pin == nullptr) return base::InvalidArgument("pin", "NULL");
  if (pin->pin->InOwnerProcess()) return absl::OkStatus();
  return base::MakeStatus(base::Code::kForked, "pin", "made by the parent of this forked process");
}

}  // namespace
}  // namespace kvstrata::capi

using namespace kvstrata::capi;  // the ABI's functions are the only names in this file outside it

extern "C" {

kvstrata_status kvstrata_match_pin(const kvstrata_match* match, kvstrata_pin** out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (match == nullptr) return base::InvalidArgument("match", "NULL");
    if (out == nullptr) return base::InvalidArgument("out", "NULL");
    absl::StatusOr<std::unique_ptr<engine::Pin>> made = engine::Pin::Create(*match->match);
    if (!made.ok()) return made.status();
    *out = new kvstrata_pin{*std::move(made)};
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_pin_get_info(const kvstrata_pin* pin, kvstrata_pin_info* out, kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (absl::Status status = CheckPin(pin); !status.ok()) return status;
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    kvstrata_pin_info info{};
    info.first_token = pin->pin->first_token();
    info.end_token = pin->pin->end_token();
    info.range_count = pin->pin->range_count();
    info.held_bytes = pin->pin->held_bytes();
    WriteStruct(info, out);
    return absl::OkStatus();
  });
}

kvstrata_status kvstrata_pin_get_range(const kvstrata_pin* pin, uint64_t index, kvstrata_pin_range* out,
                                       kvstrata_error* error) {
  return Fence(error, [&]() -> absl::Status {
    if (absl::Status status = CheckPin(pin); !status.ok()) return status;
    if (absl::Status status = CheckOutput(out, "out"); !status.ok()) return status;
    if (index >= pin->pin->range_count()) {
      return base::InvalidArgument("index", std::to_string(index) + " of " + std::to_string(pin->pin->range_count()));
    }
    const engine::Pin::Range found = pin->pin->range(index);
    kvstrata_pin_range range{};
    range.stream = found.stream;
    range.first_row = found.rows.first;
    range.rows = found.rows.count;
    range.data = found.bytes.empty() ? nullptr : found.bytes.data();
    range.bytes = found.bytes.size();
    WriteStruct(range, out);
    return absl::OkStatus();
  });
}

void kvstrata_pin_destroy(kvstrata_pin* pin) {
  // A forked child must not touch the parent's locks; what it inherited it leaves alone.
  if (pin == nullptr || !pin->pin->InOwnerProcess()) return;
  delete pin;
}

}  // extern "C"
