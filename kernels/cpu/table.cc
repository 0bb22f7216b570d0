// SPDX-License-Identifier: Apache-2.0
// The tables of the cpu levels. A function that a level has no code for is the reference's: slower, never missing.
#include <array>

#include "kernels/cpu/level.h"

namespace kvstrata::kernels::cpu {
namespace {

struct NamedLevel {
  Level level;
  const char* name;
};

constexpr std::array kLevels = {NamedLevel{Level::kPortable, "cpu-portable"}, NamedLevel{Level::kAvx2, "cpu-avx2"},
                                NamedLevel{Level::kAvx512, "cpu-avx512"},
                                NamedLevel{Level::kAvx512Bf16, "cpu-avx512_bf16"}};

kvstrata_kernels MakeTable(const NamedLevel& named) {
  kvstrata_kernels table = *reference::Table();
  table.level = static_cast<uint32_t>(named.level);
  table.name = named.name;
  // A Fill function is itself code of its level, and a compiler stores two pointers with the level's vectors.
  if (named.level > BestLevel()) return table;
  FillFormats(named.level, table);
  FillMovement(named.level, table);
  FillAttention(named.level, table);
  FillPositions(named.level, table);
  FillProjection(named.level, table);
  FillCompress(named.level, table);
  FillSelection(named.level, table);
  FillTopK(named.level, table);
#if defined(__x86_64__)
  if (named.level == Level::kAvx512Bf16) {
    FillAvx512Bf16Formats(table);
    FillAvx512Bf16Attention(table);
    FillAvx512Bf16Compress(table);
    FillAvx512Bf16Selection(table);
  }
#endif
  return table;
}

}  // namespace

const kvstrata_kernels* Table(int32_t level) {
  static const std::array kTables = {MakeTable(kLevels[0]), MakeTable(kLevels[1]), MakeTable(kLevels[2]),
                                     MakeTable(kLevels[3])};
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (static_cast<int32_t>(kLevels[i].level) != level) continue;
    return level <= static_cast<int32_t>(BestLevel()) ? &kTables[i] : nullptr;
  }
  return nullptr;
}

const kvstrata_kernels* BestTable(int32_t most) {
  for (size_t i = kLevels.size(); i-- > 0;) {
    const int32_t level = static_cast<int32_t>(kLevels[i].level);
    if (level > most) continue;
    if (const kvstrata_kernels* table = Table(level); table != nullptr) return table;
  }
  return nullptr;
}

}  // namespace kvstrata::kernels::cpu
