#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stands in for the tests of a language whose tools are not there, and says so.
echo "skipped: $*"
exit 77
