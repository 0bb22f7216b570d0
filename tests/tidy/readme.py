# SPDX-License-Identifier: Apache-2.0
"""The examples in README.md are files that the build compiles and runs: both texts must be the same, line by line.

usage: readme.py ROOT
"""

import os
import re
import sys

import source_tree

EXAMPLES = {"c": "examples/minimal_c/main.c", "cpp": "examples/minimal_cpp/main.cc"}


def main(root):
    problems = []
    readme = source_tree.read(root, "README.md")
    for language, path in EXAMPLES.items():
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
        # All but the licence line, which the README has for itself.
        expected = source_tree.read(root, path).split("\n", 1)[1]
        if blocks != [expected]:
            problems.append(f"README.md: its block of {language} is not {path} without the first line")
    for target in re.findall(r"\]\(([\w./-]+)\)", readme):
        if not os.path.exists(os.path.join(root, target)):
            problems.append(f"README.md: {target} does not exist")
    return source_tree.report(problems, "readme")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
