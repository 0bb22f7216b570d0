# SPDX-License-Identifier: Apache-2.0
"""Each public header compiles alone, twice in one file, in every language it promises and with each compiler given.

usage: headers.py ROOT --c COMPILER... --cxx COMPILER...

A C header: C99, C11, C17 and C++17, pedantic, and no padding in any struct. A C++ header: C++17; the umbrella, which
has them all, also C++20, and C++17 without exceptions and run-time type information.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys

import source_tree

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-pedantic-errors", "-Werror", "-fsyntax-only"]
C_WAYS = (["-std=c99", "-Wpadded", "-Wstrict-prototypes"], ["-std=c11"], ["-std=c17"])
CXX_WAYS_OF_C = (["-std=c++17"],)
CXX_WAYS = (["-std=c++17"],)
UMBRELLA = "include/kvstrata/kvstrata.hpp"
UMBRELLA_WAYS = (["-std=c++20"], ["-std=c++17", "-fno-exceptions", "-fno-rtti"])


def compile_alone(root, header, compiler, language, flags):
    name = os.path.relpath(header, "include")
    # The declaration keeps the file from being empty, which ISO C forbids.
    text = f'#include "{name}"\n#include "{name}"\nextern int kvstrata_header_test;\n'
    command = [compiler, "-x", language, *WARNINGS, *flags, "-I", os.path.join(root, "include"), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    return [f"{header}: {' '.join(command)}\n{done.stderr}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--c", nargs="+", required=True)
    parser.add_argument("--cxx", nargs="+", required=True)
    arguments = parser.parse_args()

    headers = [path for path in source_tree.files(arguments.root) if path.startswith("include/")]
    work = []
    for header in headers:
        if header.endswith(".h"):
            work += [(header, compiler, "c", way) for compiler in arguments.c for way in C_WAYS]
            work += [(header, compiler, "c++", way) for compiler in arguments.cxx for way in CXX_WAYS_OF_C]
        elif header.endswith(".hpp"):
            ways = CXX_WAYS + (UMBRELLA_WAYS if header == UMBRELLA else ())
            work += [(header, compiler, "c++", way) for compiler in arguments.cxx for way in ways]
        else:
            return source_tree.report([f"{header}: neither .h nor .hpp"], "headers")
    problems = [] if work else ["no public header found"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda job: compile_alone(arguments.root, *job), work):
            problems += found
    print(f"{len(headers)} headers, {len(work)} compilations")
    return source_tree.report(problems, "headers")


if __name__ == "__main__":
    sys.exit(main())
