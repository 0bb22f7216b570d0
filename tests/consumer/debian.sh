#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian packages made, looked at, and installed in a root of their own as dpkg would in the system's, dependencies
# proven; and removed without a trace. Who is not root cannot have dpkg do that: the packages are then only unpacked.
#
# usage: debian.sh install CPACK CONFIG ABI LIBDIR ROOT     makes, checks, installs
#        debian.sh remove ABI ROOT                          removes
set -euo pipefail
root=${*: -1}
# Maintainer scripts run outside: there is no shell in that root. They honour DPKG_ROOT.
dpkg_there() { DEBIAN_FRONTEND=noninteractive dpkg --root="$root" --force-script-chrootless "$@"; }
fail() { echo "$*"; exit 1; }

if [[ $1 == remove ]]; then
  if [[ $(id -u) -eq 0 ]]; then
    dpkg_there --purge libkvstrata-dev "libkvstrata$2"
    left=$(find "$root/usr" -not -type d 2> /dev/null || true)
    [[ -z $left ]] || fail "left behind: $left"
  fi
  exit 0
fi

cpack=$2 config=$3 abi=$4 libdir=$5
rm -rf "$root" "$root-packages"
"$cpack" -G DEB --config "$config" -B "$root-packages"
runtime=$(echo "$root-packages"/libkvstrata"$abi"_*.deb) development=$(echo "$root-packages"/libkvstrata-dev_*.deb)

depends=$(dpkg-deb -f "$runtime" Depends)
for wanted in libc6 libstdc++6 libabsl; do
  [[ $depends == *"$wanted"* ]] || fail "$runtime depends on $depends, not on $wanted"
done
version=$(dpkg-deb -f "$runtime" Version)
[[ $(dpkg-deb -f "$development" Depends) == "libkvstrata$abi (= $version)" ]] || fail "the packages may be mixed"
dpkg-deb --ctrl-tarfile "$runtime" | tar -xO ./shlibs | grep -q "^libkvstrata $abi libkvstrata$abi" || fail "no shlibs"
contents=$(dpkg-deb -c "$runtime"; dpkg-deb -c "$development")
for path in "usr/$libdir/libkvstrata.so.$abi" "usr/share/doc/libkvstrata$abi/copyright" \
            "usr/$libdir/pkgconfig/kvstrata.pc" usr/include/kvstrata/c_api.h usr/share/doc/libkvstrata-dev/copyright; do
  [[ $contents == *" ./$path"* ]] || fail "no $path"
done
# The CUDA library's, where the build has one: nothing of CUDA's is needed to install it.
for cuda in "$root-packages"/libkvstrata-cuda"$abi"_*.deb; do
  [[ -e $cuda ]] || continue
  [[ $(dpkg-deb -f "$cuda" Depends) != *cuda* ]] || fail "$cuda depends on $(dpkg-deb -f "$cuda" Depends)"
  contents+=$'\n'$(dpkg-deb -c "$cuda"; dpkg-deb -c "$root-packages"/libkvstrata-cuda-dev_*.deb)
  for path in "usr/$libdir/libkvstrata_cuda.so.$abi" usr/include/kvstrata/cuda.h \
              "usr/share/doc/libkvstrata-cuda$abi/copyright"; do
    [[ $contents == *" ./$path"* ]] || fail "no $path"
  done
done
[[ -z $(grep -v ' root/root ' <<< "$contents") ]] || fail "files that are not root's"

if [[ $(id -u) -ne 0 ]]; then
  dpkg-deb -x "$runtime" "$root"
  dpkg-deb -x "$development" "$root"
  exit 0
fi
# To that root's dpkg the packages are there that the system has of those that ours name: it refuses ours where one that
# they depend on is missing, or too old.
mkdir -p "$root/etc" "$root"/var/lib/dpkg/{info,updates}
touch "$root/var/lib/dpkg/status"
for package in $(sed 's/([^)]*)//g; s/,/ /g' <<< "$depends"); do
  { dpkg --status "$package" && echo; } >> "$root/var/lib/dpkg/status" || true
  touch "$root/var/lib/dpkg/info/$package.list" "$root/var/lib/dpkg/info/$package:$(dpkg --print-architecture).list"
done
dpkg_there --install "$runtime" "$development"
[[ $(dpkg_there --audit "libkvstrata$abi" libkvstrata-dev) == "" ]] || fail "not well installed"
strings -a "$root/etc/ld.so.cache" | grep -q "libkvstrata.so.$abi" || fail "the loader does not know the library"
