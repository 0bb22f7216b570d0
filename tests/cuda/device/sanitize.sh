#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernels' tests on a GPU under compute-sanitizer: memcheck, then racecheck. Ends with 77 where there is no
# compute-sanitizer or no GPU.
#
# usage: sanitize.sh CUDA_DEVICE_TEST
set -euo pipefail
if ! command -v compute-sanitizer > /dev/null; then
  echo "skipped: there is no compute-sanitizer"
  exit 77
fi
# Every access is checked: a few cases of each function take minutes.
export KVSTRATA_KERNEL_OPS=${KVSTRATA_KERNEL_OPS:-8}
for tool in memcheck racecheck; do
  status=0
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$1" "[kernels]" || status=$?
  if [[ $status -ne 0 ]]; then exit "$status"; fi
done
