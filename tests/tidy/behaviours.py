# SPDX-License-Identifier: Apache-2.0
"""Every test that the table in tests/README.md quotes exists, by its whole name; and the Python package has nothing
that makes code of bytes (I20).

usage: behaviours.py ROOT
"""

import re
import sys

import source_tree

TABLE = "tests/README.md"
ROW = re.compile(r"^\| [A-Z]\d\d[^|]*\|[^|]*\|(.*)\|$", re.MULTILINE)
CODE_OF_BYTES = re.compile(r"\b(?:pickle|marshal|shelve)\b|\b(?:eval|exec)\(")
PACKAGE = "examples/python/kvstrata/"
NAME = re.compile(r'TEST_CASE\(\s*"((?:[^"\\]|\\.|"\s+")*)"')


def main(root):
    known = set()
    for path in source_tree.files(root, (".cc",)):
        if path.startswith("tests/"):
            # A long name may be split into strings that follow each other.
            known |= {re.sub(r'"\s+"', "", name) for name in NAME.findall(source_tree.read(root, path))}
    problems = []
    rows = ROW.findall(source_tree.read(root, TABLE))
    if not rows:
        problems.append(f"{TABLE}: has no table")
    for row in rows:
        quoted = re.findall(r"`([^`]+)`", row)
        if not quoted:
            problems.append(f"{TABLE}: a row without a test: {row.strip()}")
        problems += [f"{TABLE}: there is no test '{name}'" for name in quoted if name not in known]
    package = [path for path in source_tree.files(root, (".py",)) if path.startswith(PACKAGE)]
    problems += [f"{path}: may run what it reads" for path in package
                 if CODE_OF_BYTES.search(source_tree.read(root, path))]
    if not package:
        problems.append(f"{PACKAGE}: has no sources")
    return source_tree.report(problems, "behaviours")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
