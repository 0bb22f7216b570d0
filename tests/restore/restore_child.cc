// SPDX-License-Identifier: Apache-2.0
// One process of process_test.cc: serves the first LENGTH test tokens from the store in DIRECTORY and writes
// "usable replay_from" and the logits' bits to OUTPUT. usage: restore_child DIRECTORY LENGTH MODE OUTPUT
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>

#include "tests/restore/rig.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    restore_test::RigOptions options;
    options.store = restore_test::StoreKind::kFile;
    options.directory = argv[1];
    restore_test::Rig rig(options);
    restore_test::ServeOptions serving;
    serving.allowed_modes = 1u << std::strtoul(argv[3], nullptr, 10);
    const auto tokens = restore_test::TestTokens(std::strtoul(argv[2], nullptr, 10));
    const restore_test::Served served = rig.Serve(tokens, serving);
    std::ofstream out(argv[4]);
    out << served.usable_tokens << ' ' << served.replay_from << '\n';
    for (const float logit : served.logits) {
      uint32_t bits;
      std::memcpy(&bits, &logit, sizeof bits);
      out << bits << '\n';
    }
    return out.flush() ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "restore_child: %s\n", failure.what());
    return 1;
  }
}
