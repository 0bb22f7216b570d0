#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks Abseil's source as the distribution packages it, with its patches, for KVSTRATA_BUNDLED_ABSEIL. It comes by
# apt, which proves its signature, with lists of its own: the system's are not touched, and no rights are needed.
#
# usage: fetch-abseil.sh FOLDER     exits with 77 where the source cannot be had
set -euo pipefail
folder=$(realpath -m "$1")
if [[ -e $folder/absl/base/options.h ]]; then
  echo "abseil: already in $folder"
  exit 0
fi
for tool in apt-get dpkg-source; do
  command -v "$tool" > /dev/null || { echo "abseil: no $tool: its source cannot be had"; exit 77; }
done

# The archives that the system takes its own release from, asked for sources instead.
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{parts,lists/partial,cache/archives/partial,package}
{ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2> /dev/null || true; } |
  sed -nE "s/^deb (.* $release(-\S+)? .*\bmain\b.*)/deb-src \1/p" > "$work/parts/system.list"
{ cat /etc/apt/sources.list.d/*.sources 2> /dev/null || true; } |
  awk -v RS= -v release="$release" '$0 ~ "Suites:[^\n]*[ /]" release "([ \n-]|$)" {
    sub(/Types:[^\n]*/, "Types: deb-src"); print $0 "\n" }' > "$work/parts/system.sources"

apt() {
  apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/parts" \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=2 "$@"
}
if ! { apt update && cd "$work/package" && apt source --download-only abseil; } > "$work/log" 2>&1; then
  tail -5 "$work/log"
  echo "abseil: apt cannot get the source package"
  exit 77
fi
mkdir -p "$(dirname "$folder")"
rm -rf "$folder" "$folder.part"
dpkg-source --no-copy -x "$work"/package/*.dsc "$folder.part" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mv "$folder.part" "$folder"
echo "abseil: $(basename "$work"/package/*.dsc .dsc) in $folder"
