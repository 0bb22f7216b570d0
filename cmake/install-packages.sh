#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs from Debian's archive what a purpose of this repository needs and is not there yet; does nothing, and asks
# for no rights, when nothing is missing.
#
# usage: install-packages.sh build|test|bench|package ...
set -euo pipefail

packages_of() {
  case "$1" in
    build)
      echo "g++ cmake ninja-build pkg-config"
      echo "libabsl-dev libhwy-dev libzstd-dev libxxhash-dev nlohmann-json3-dev"
      ;;
    test)
      echo "abigail-tools catch2 dpkg-dev golang-go"
      echo "python3 python3-pip python3-setuptools python3-wheel python3-xxhash"
      ;;
    package) echo "dpkg-dev" ;;
    bench) echo "libbenchmark-dev librocksdb-dev liblmdb-dev valgrind python3" ;;
    *) echo "install-packages.sh: no such purpose: $1 (build, test, bench, package)" >&2; return 2 ;;
  esac
}

wanted=()
for purpose in "$@"; do
  list=$(packages_of "$purpose")
  read -r -d '' -a words <<< "$list" || true
  wanted+=("${words[@]}")
done

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  echo "packages: not a Debian system; the equivalents of these must be there: ${wanted[*]}"
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
  [[ $state == installed* ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "packages: all there (${wanted[*]})"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo > /dev/null; then
    echo "packages: missing ${missing[*]}; run this as root, or install sudo, or install them by hand" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "packages: installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }
apt update
apt install -y --no-install-recommends "${missing[@]}"
