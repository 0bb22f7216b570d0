#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernels for 64-bit Arm: builds them and their tests with a cross compiler, and runs those in qemu. The portable
# level is NEON there. Debian: apt-get install g++-aarch64-linux-gnu qemu-user
#
# usage: tests/kernels/aarch64.sh      (build/aarch64; KVSTRATA_KERNEL_OPS sets the cases of the fuzz, 20 by default)
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$tool" > /dev/null || { echo "$tool is missing"; exit 1; }
done
# -O1 as in the preset dev (the kernels themselves are -O3): GCC 12 for Arm crashes on a loop of a test at -O2.
cmake -S tests/kernels/cross -B build/aarch64 -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
  --toolchain "$PWD/cmake/aarch64-linux-gnu.cmake"
cmake --build build/aarch64
# Programs run about thirty times slower in qemu: few random cases, and without the long vectors of profile F.
KVSTRATA_KERNEL_OPS=${KVSTRATA_KERNEL_OPS:-20} ctest --test-dir build/aarch64 --output-on-failure -R 'kernels|golden_q'
