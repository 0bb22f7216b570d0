#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles, links and runs the C consumer with what the installed kvstrata.pc says.
#
# usage: pkg_config.sh shared|static PREFIX LIBDIR COMPILER SOURCE OUTPUT
set -euo pipefail
kind=$1 prefix=$2 libdir=$3 compiler=$4 source=$5 output=$6
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig

read -r -a cflags <<< "$(pkg-config --cflags kvstrata)"
if [[ $kind == shared ]]; then
  read -r -a libs <<< "$(pkg-config --libs kvstrata)"
else
  # Both libraries lie in one folder, where the linker prefers the shared one: name the archive.
  read -r -a libs <<< "$(pkg-config --static --libs kvstrata | sed 's/-lkvstrata\b/-l:libkvstrata.a/')"
fi
set -x
"$compiler" -std=c99 -Wall -Wextra -Werror "${cflags[@]}" "$source" -o "$output" "${libs[@]}"
{ set +x; } 2> /dev/null
LD_LIBRARY_PATH=$prefix/$libdir "$output"
needed=$(readelf -d "$output" | grep -c 'NEEDED.*libkvstrata' || true)
[[ $kind == shared && $needed == 1 || $kind == static && $needed == 0 ]] || {
  echo "the program needs libkvstrata $needed time(s), which is wrong for $kind"
  exit 1
}
