#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All test stages, one after the other; the first failure ends it. Closes with a table of the minutes of each stage.
# Every stage is one preset of CMakePresets.json, so any of them can be repeated by hand.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=$(nproc 2> /dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$jobs}

# GCC 12's sanitizers cannot start where the kernel randomises addresses over more than 28 bits (their shadow memory
# is in the way), so they run without randomisation wherever that may be switched off.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2> /dev/null; then
  fixed_addresses=(setarch "$(uname -m)" -R)
fi

names=() minutes=() results=()

finish() {
  printf '\n%-16s %8s  %s\n' stage minutes result
  local i total=0
  for i in "${!names[@]}"; do
    printf '%-16s %8s  %s\n' "${names[$i]}" "${minutes[$i]}" "${results[$i]}"
  done
  total=$((SECONDS * 10 / 60))
  printf '%-16s %8s\n' total "$((total / 10)).$((total % 10))"
  exit "$1"
}

stage() {
  local name=$1 begin=$SECONDS status=0 tenths
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" || status=$?
  tenths=$(((SECONDS - begin) * 10 / 60))
  names+=("$name") minutes+=("$((tenths / 10)).$((tenths % 10))")
  if [[ $status -ne 0 ]]; then
    results+=("failed ($status)")
    finish 1
  fi
  results+=(passed)
}

for preset in dev asan tsan; do
  runner=()
  [[ $preset == dev ]] || runner=("${fixed_addresses[@]}")
  stage "$preset configure" cmake --preset "$preset"
  stage "$preset build" cmake --build --preset "$preset"
  stage "$preset test" "${runner[@]}" ctest --preset "$preset"
done
finish 0
