#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs at one place, moves what was installed to another, and looks for traces of the first.
#
# usage: move.sh CMAKE BUILD MADE_HERE MOVED
set -euo pipefail
cmake=$1 build=$2 made_here=$3 moved=$4
rm -rf "$made_here" "$moved"
"$cmake" --install "$build" --prefix "$made_here" > /dev/null
mv "$made_here" "$moved"
# Text only: debug information says where the library was compiled, which is nobody's business at run time.
if grep -rIl --fixed-strings -e "$made_here" -e "$build" "$moved"; then
  echo "these files name the folder that they were installed to, or built in"
  exit 1
fi
if readelf -d "$moved"/lib*/libkvstrata.so "$moved"/lib*/*/libkvstrata.so 2> /dev/null | grep -E 'RPATH|RUNPATH'; then
  echo "the library looks for others at a fixed place"
  exit 1
fi
