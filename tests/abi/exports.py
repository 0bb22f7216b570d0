# SPDX-License-Identifier: Apache-2.0
"""A shared library exports what its headers declare, its map and its list name, and nothing else.

usage: exports.py ROOT LIBRARY --nm NM --readelf READELF [--bundled] [--cuda]

--bundled: the library has Abseil within it, and may not need the system's.
--cuda: the library is libkvstrata_cuda, not libkvstrata.
"""

import argparse
import os
import re
import subprocess
import sys
import typing


class Library(typing.NamedTuple):
    """Where a library's names stand."""
    name: str
    headers: tuple
    map: str
    list: str
    node: str


CORE = Library("libkvstrata", ("c_api.h", "kernels.h", "version.h"), "capi/kvstrata.map", "capi/symbols.txt",
               "KVSTRATA")
CUDA = Library("libkvstrata_cuda", ("cuda.h",), "kernels/cuda/library/kvstrata_cuda.map",
               "kernels/cuda/library/symbols.txt", "KVSTRATA_CUDA")

PROTOTYPE = re.compile(r"^KVSTRATA_API [^;(]*?\b(kvstrata_\w+)\s*\(", re.MULTILINE)
# What a library may need at run time: the C and C++ run-times and the distribution's Abseil and zstd. CUDA's own
# libraries are within libkvstrata_cuda or loaded when they are asked for.
NEEDED = re.compile(r"^(libc|libm|libgcc_s|libstdc\+\+|libpthread|ld-linux[\w-]*|libzstd)\.so\b")
ABSEIL = re.compile(r"^libabsl_\w+\.so\b")


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as stream:
        return stream.read()


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declared_names(root, headers):
    names = set()
    for header in headers:
        names |= set(PROTOTYPE.findall(without_comments(read(root, "include/kvstrata/" + header))))
    return names


def check_headers(problems, root):
    known = {*CORE.headers, *CUDA.headers}
    for header in os.listdir(os.path.join(root, "include/kvstrata")):
        if header.endswith(".h") and header not in known:
            problems.append(f"{header}: no library has its functions")


def map_names(path, text):
    """(node, names) of the one node that the map may have."""
    match = re.fullmatch(r"\s*(\w+)\s*\{\s*global:([^{}:]*)local:\s*\*;\s*\};\s*", without_comments(text))
    if not match:
        raise SystemExit(f"{path}: not one node of names with 'local: *;'")
    return match.group(1), {name.strip() for name in match.group(2).split(";") if name.strip()}


def listed_names(path, text, problems):
    names = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        if not re.fullmatch(r"kvstrata_\w+\s+\d+\.\d+\.\d+\s+(unstable|stable|deprecated)", line):
            problems.append(f"{path}:{number}: not 'name release state': {line}")
        names.append(line.split()[0])
    if names != sorted(set(names)):
        problems.append(f"{path}: names are not sorted, or one stands there twice")
    return set(names)


def exported_names(nm, library, node):
    """Names without the version suffix; the version node itself, an absolute symbol, is left out."""
    names = set()
    for line in output_of(nm, "-D", "--defined-only", library).splitlines():
        name = line.split()[-1]
        if name.split("@")[0] != node:
            names.add(name.replace("@@" + node, ""))
    return names


def compare(problems, left, left_names, right, right_names):
    for name in sorted(left_names - right_names):
        problems.append(f"{name} is in {left} but not in {right}")
    for name in sorted(right_names - left_names):
        problems.append(f"{name} is in {right} but not in {left}")


def check_dynamic(problems, text, soname, bundled):
    if f"Library soname: [{soname}]" not in text:
        problems.append(f"the SONAME is not {soname}")
    for library in re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", text):
        if not NEEDED.match(library) and (bundled or not ABSEIL.match(library)):
            problems.append(f"the library needs {library}")
    if "(TEXTREL)" in text:
        problems.append("the library has text relocations")
    if not re.search(r"BIND_NOW|\(FLAGS_1\).*NOW", text):
        problems.append("the library is not bound at load (-z now)")
    if re.search(r"\((RPATH|RUNPATH)\)", text) and bundled:
        problems.append("the library looks for others at a fixed place")


def check_segments(problems, text):
    """Nothing is writable that need not be, and no stack is executable."""
    if "GNU_RELRO" not in text:
        problems.append("relocated data stays writable (no -z relro)")
    stack = re.search(r"GNU_STACK\s+(?:0x[0-9a-f]+\s+){5}([RWE ]+?)\s+0x", text)
    if not stack or "E" in stack.group(1):
        problems.append("the library asks for an executable stack")
    if re.search(r"LOAD\s+(?:0x[0-9a-f]+\s+){5}RWE", text):
        problems.append("the library has memory that is both writable and executable")


def check_resolved(problems, library):
    """Every name is found in what the library itself says it needs (-z defs)."""
    text = subprocess.run(["ldd", "-r", library], check=True, capture_output=True, text=True)
    for line in (text.stdout + text.stderr).splitlines():
        if "undefined symbol" in line or "not found" in line:
            problems.append(line.strip())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("library")
    parser.add_argument("--nm", required=True)
    parser.add_argument("--readelf", required=True)
    parser.add_argument("--bundled", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    arguments = parser.parse_args()

    problems = []
    library = CUDA if arguments.cuda else CORE
    abi = re.search(r"^#define KVSTRATA_ABI_VERSION (\d+)$", read(arguments.root, "include/kvstrata/version.h"),
                    re.MULTILINE).group(1)
    check_headers(problems, arguments.root)
    declared = declared_names(arguments.root, library.headers)
    node, mapped = map_names(library.map, read(arguments.root, library.map))
    listed = listed_names(library.list, read(arguments.root, library.list), problems)
    exported = exported_names(arguments.nm, arguments.library, node)
    if node != f"{library.node}_{abi}":
        problems.append(f"{library.map}: the node is {node}, the ABI number {abi}")
    compare(problems, "the headers", declared, library.map, mapped)
    compare(problems, "the headers", declared, library.list, listed)
    compare(problems, "the headers", declared, "the library", exported)
    check_dynamic(problems, output_of(arguments.readelf, "-dW", arguments.library), f"{library.name}.so.{abi}",
                  arguments.bundled or arguments.cuda)
    check_segments(problems, output_of(arguments.readelf, "-lW", arguments.library))
    check_resolved(problems, arguments.library)

    for problem in problems:
        print(problem)
    print(f"abi: {len(declared)} names, {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
