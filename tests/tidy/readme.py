# SPDX-License-Identifier: Apache-2.0
"""The examples in README.md are files that the build compiles and runs: both texts must be the same, line by line. The
code in the guide is parts of the program beside it, and all links of both lead somewhere.

usage: readme.py ROOT
"""

import os
import re
import sys

import source_tree

EXAMPLES = {"c": "examples/short_c/main.c", "cpp": "examples/short_cpp/main.cc"}
GUIDE = "examples/paged_toy_engine/README.md"
GUIDE_SOURCE = "examples/paged_toy_engine/main.cc"
IDENTITY = "lib/layout/identity.cc"


def check_guide(root):
    source = source_tree.read(root, GUIDE_SOURCE)
    blocks = re.findall(r"^```cpp\n(.*?)^```$", source_tree.read(root, GUIDE), re.DOTALL | re.MULTILINE)
    if not blocks:
        yield f"{GUIDE}: no code"
    for block in blocks:
        if "\n" + block not in source:
            yield f"{GUIDE}: not in {GUIDE_SOURCE}: {block.splitlines()[0]}"


def check_identity_table(root):
    """Each name that some family asks for is explained in the guide."""
    table = source_tree.read(root, IDENTITY).split("kTable[]", 1)[1].split("};", 1)[0]
    guide = source_tree.read(root, GUIDE)
    for name in sorted({*re.findall(r'"([a-z_.]+)"', table), "shard"}):
        if f"\n| `{name}` | " not in guide:
            yield f"{GUIDE}: {name} of {IDENTITY} is not in the table of the identity"


def check_links(root, path):
    for target in re.findall(r"\]\(([\w./-]+)\)", source_tree.read(root, path)):
        if not os.path.exists(os.path.join(root, os.path.dirname(path), target)):
            yield f"{path}: {target} does not exist"


def main(root):
    problems = [*check_guide(root), *check_identity_table(root)]
    problems += [*check_links(root, GUIDE), *check_links(root, "README.md")]
    readme = source_tree.read(root, "README.md")
    for language, path in EXAMPLES.items():
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
        # All but the licence line, which the README has for itself.
        expected = source_tree.read(root, path).split("\n", 1)[1]
        if blocks != [expected]:
            problems.append(f"README.md: its block of {language} is not {path} without the first line")
    return source_tree.report(problems, "readme")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
