// SPDX-License-Identifier: Apache-2.0
// Internal to lib/layout: the canonical text of a description that Create has already validated.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lib/layout/layout.h"

namespace kvstrata::core::layout {

std::string FormatText(const LayoutDesc& desc);
// "exact+split", "-" for none.
std::string FlagsText(uint32_t flags);
// The line (from 1) in which two texts first differ.
size_t FirstDifferentLine(std::string_view a, std::string_view b);

}  // namespace kvstrata::core::layout
