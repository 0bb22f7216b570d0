#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package from its folder, without a network, and uses what was installed.
#
# usage: pip_install.sh PYTHON PACKAGE SCRATCH   (KVSTRATA_LIBRARY names the library)
set -euo pipefail
python=$1 package=$2 scratch=$3
enough="import setuptools, pip, sys; sys.exit(int(setuptools.__version__.split('.')[0]) < 61)"
if ! "$python" -c "$enough" 2> /dev/null; then
  echo "skipped: $python has no pip with setuptools >= 61"
  exit 77
fi
rm -rf "$scratch"
mkdir -p "$scratch"
# A copy, since setuptools leaves its work in the source folder.
cp -r "$package" "$scratch/source"
"$python" -m pip install --quiet --no-index --no-build-isolation --no-deps --disable-pip-version-check \
  --root-user-action ignore --target "$scratch/site" "$scratch/source"
cd "$scratch"
PYTHONPATH="$scratch/site" "$python" -B -c "
import os, kvstrata
assert kvstrata.__file__.startswith(os.path.join(os.getcwd(), 'site')), kvstrata.__file__
with kvstrata.Layout.preset('deepseek-v4-flash') as layout:
    print('installed:', kvstrata.version_string(), layout.info.stream_count, 'streams')"
