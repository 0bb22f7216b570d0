# SPDX-License-Identifier: Apache-2.0
"""What the tidy tests share: the list of the repository's files, and C text without comments and strings."""

import os
import re

C_SUFFIXES = (".h", ".hpp", ".c", ".cc", ".cu", ".cuh")
SKIPPED_FOLDERS = {".git", "__pycache__", "build"}


def files(root, suffixes=None):
    """Paths relative to root, sorted; build folders, and whatever lies beside a tracked tree, left out."""
    found = []
    for folder, names, leaves in os.walk(root):
        names[:] = sorted(n for n in names if n not in SKIPPED_FOLDERS and not n.startswith("build-"))
        for leaf in leaves:
            if suffixes is None or leaf.endswith(suffixes):
                found.append(os.path.relpath(os.path.join(folder, leaf), root))
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", newline="") as stream:
        return stream.read()


# In this order: a raw string may hold quotes and slashes, a string may hold //, a comment may hold quotes. A quote
# between digits (1'000) is a separator, not a character literal.
_TOKENS = re.compile(
    r'R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*"
    r"|/\*.*?\*/",
    re.DOTALL)


def code_only(text, keep_strings=False):
    """C or C++ text with comments blanked, and string contents too unless kept; line numbers stay as they are."""

    def blank(match):
        token = match.group(0)
        if token[0] in "\"'R":
            if keep_strings:
                return token
            return '""' + "\n" * token.count("\n")
        return " " + "\n" * token.count("\n")

    return _TOKENS.sub(blank, text)


def report(problems, what):
    """Prints the problems; the exit status of a test."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)")
    return 1 if problems else 0
