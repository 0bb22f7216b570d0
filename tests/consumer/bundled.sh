#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The bundled build (KVSTRATA_BUNDLED_ABSEIL), from the distribution's source package: nothing of Abseil is needed and
# nothing of it shows, and the consumers of the usual build work with it unchanged. KVSTRATA_ABSEIL_SOURCE names a
# source tree where the package cannot be had; without either this exits with 77, skipped.
#
# usage: bundled.sh SOURCE WORK GENERATOR CMAKE CTEST PYTHON CC CXX [LAUNCHER]
set -euo pipefail
source=$1 work=$2 generator=$3 cmake=$4 ctest=$5 python=$6 cc=$7 cxx=$8 launcher=${9:-}
consumers=$source/tests/consumer

abseil=${KVSTRATA_ABSEIL_SOURCE:-$work/abseil}
[[ -n ${KVSTRATA_ABSEIL_SOURCE:-} ]] || "$source/cmake/fetch-abseil.sh" "$abseil"

# Without optimisation: only linking is this test's matter.
options=(-DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="-O0 -g0" -DCMAKE_CXX_FLAGS="-O0 -g0" -DCMAKE_C_FLAGS_DEBUG=
  -DCMAKE_CXX_FLAGS_DEBUG= -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx"
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher")
"$cmake" -S "$source" -B "$work/build" -G "$generator" "${options[@]}" -DKVSTRATA_BUILD_TESTS=OFF \
  -DKVSTRATA_BUILD_EXAMPLES=OFF -DKVSTRATA_ENABLE_CUDA=off -DKVSTRATA_PRECOMPILE_HEADERS=ON \
  -DKVSTRATA_BUNDLED_ABSEIL="$abseil" -DCMAKE_INSTALL_LIBDIR=lib
"$cmake" --build "$work/build" --parallel "$(nproc)"
rm -rf "$work/prefix"
"$cmake" --install "$work/build" --prefix "$work/prefix"
"$python" -B "$source/tests/abi/exports.py" "$source" "$work/prefix/lib/libkvstrata.so" --nm nm --readelf readelf \
  --bundled

for project in find_package c_only static_library dlopen; do
  "$ctest" --build-and-test "$consumers/$project" "$work/$project" --build-generator "$generator" \
    --build-options "${options[@]}" -DCMAKE_PREFIX_PATH="$work/prefix" \
    --test-command "$ctest" --output-on-failure --no-tests=error
done
for kind in shared static; do
  "$consumers/pkg_config.sh" "$kind" "$work/prefix" lib "$cc" "$consumers/consumer.c" "$work/pkg_config_$kind"
done
for program in "$work"/static_library/{static_consumer,libplugin.so} "$work/pkg_config_static"; do
  if readelf -d "$program" | grep NEEDED | grep absl; then
    echo "$program needs the system's Abseil"
    exit 1
  fi
done
