# SPDX-License-Identifier: Apache-2.0
"""The ABI has only grown since its baseline: nothing that a program could have been linked against has changed.

The baseline of an ABI number N lies in capi/abi: baseline-N.abi, what abidw (Debian: abigail-tools) reads of the public
types and functions out of the library's debug information, and baseline-N.constants, since constants leave no trace in
a library. abidiff compares. What may come on top (CONTRIBUTING.md, ABI.md) is taken away before: it knows no size-first
structs, and its own suppressions would hide a changed member beside an added one.

usage: baseline.py ROOT --library LIB --cc CC [--cuda]           compares; prints what has come on top
       baseline.py ROOT --library LIB --cc CC [--cuda] --write   renews the baseline. From ABI 1 on only by additions
       baseline.py ROOT --cc CC --cxx CXX --self-test   planted changes: those that break must be found, and no others

--cuda: LIB is libkvstrata_cuda, whose baseline is baseline-N-cuda.*; the number is that of libkvstrata.

Exits with 77 where abigail-tools is not installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import abi_data

TOOLS_MISSING = 77
# Types that no public header declares are the library's own business (handles), and so is where a type is declared.
ABIDW = ("--drop-private-types", "--exported-interfaces-only", "--drop-undefined-syms", "--no-corpus-path",
         "--no-comp-dir-path", "--no-show-locs", "--no-architecture", "--no-elf-needed", "--no-write-default-sizes",
         "--no-parameter-names")
# Said by every element, and what a reader assumes anyway.
NOISE = re.compile(r"^ +| (?:access='public'|visibility='default')|(?<= path=')[^']*/", re.MULTILINE)
# Numbers that change with every release.
VERSIONS = re.compile(r"KVSTRATA_(?:VERSION_\w+|ABI_VERSION|FORMAT_VERSION)")


def describe(library, headers):
    """abidw's text, less what says nothing."""
    text = subprocess.run(["abidw", "--headers-dir", headers, *ABIDW, library], check=True, capture_output=True,
                          text=True).stdout
    return NOISE.sub("", text)


def size_first(tree):
    """{name: element} of the structs that may grow."""
    out = {}
    for struct in tree.iter("class-decl"):
        first = struct.find("data-member/var-decl")
        if first is not None and first.get("name") == "struct_size":
            out[struct.get("name")] = struct
    return out


def without_growth(old_text, new_text):
    """(new_text with every size-first struct cut to what it was in old_text, names of the members that were cut)."""
    old, new = (xml.etree.ElementTree.fromstring(text) for text in (old_text, new_text))
    added, before = [], size_first(old)
    for name, struct in size_first(new).items():
        if name not in before:
            continue
        size = before[name].get("size-in-bits")
        for member in struct.findall("data-member"):
            if int(member.get("layout-offset-in-bits")) >= int(size):
                added.append(f"{name}.{member.find('var-decl').get('name')}")
                struct.remove(member)
        if int(struct.get("size-in-bits")) > int(size):
            struct.set("size-in-bits", size)
    return xml.etree.ElementTree.tostring(new, encoding="unicode"), added


def functions(text):
    return set(re.findall(r"<elf-symbol name='(\w+)'", text))


def compare_types(old_text, new_text):
    """(problems, additions)."""
    trimmed, additions = without_growth(old_text, new_text)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("baseline.abi", "library.abi")]
        for path, text in zip(paths, (old_text, trimmed)):
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
        # --harmless: a renamed member breaks no program, but every source that names it.
        done = subprocess.run(["abidiff", "--harmless", "--no-added-syms", "--no-architecture", *paths],
                              capture_output=True, text=True, check=False)
    problems = [] if done.returncode == 0 else [f"abidiff ({done.returncode}):\n{done.stdout}{done.stderr}"]
    return problems, additions + sorted(functions(new_text) - functions(old_text))


def compare_constants(old, new):
    problems = []
    for name, value in old.items():
        if name not in new:
            problems.append(f"the constant {name} = {value} is gone")
        elif new[name] != value:
            problems.append(f"the constant {name} was {value} and is {new[name]}")
    return problems, [name for name in new if name not in old]


def constants_of(root, compiler, cuda=False):
    number = abi_data.measure(root, compiler, abi_data.HEADERS)["constants"]["KVSTRATA_ABI_VERSION"]
    data = abi_data.measure(root, compiler, abi_data.CUDA_HEADERS if cuda else abi_data.HEADERS)
    return number, {name: value for name, value in data["constants"].items() if not VERSIONS.fullmatch(name)}


def read_constants(path):
    with open(path, encoding="utf-8") as stream:
        return {name: int(value) for name, value in (line.split() for line in stream)}


def check(root, library, compiler, cuda, write):
    number, constants = constants_of(root, compiler, cuda)
    text = describe(library, os.path.join(root, "include"))
    stem = os.path.join(root, f"capi/abi/baseline-{number}" + ("-cuda" if cuda else ""))
    types_path, constants_path = stem + ".abi", stem + ".constants"
    problems, additions = [], []
    if os.path.exists(types_path):
        with open(types_path, encoding="utf-8") as stream:
            problems, additions = compare_types(stream.read(), text)
        more_problems, more_additions = compare_constants(read_constants(constants_path), constants)
        problems, additions = problems + more_problems, additions + more_additions
    elif not write:
        problems = [f"ABI {number} has no baseline yet; make it with --write (CONTRIBUTING.md)"]
    if write and (number == 0 or not problems):
        with open(types_path, "w", encoding="utf-8") as stream:
            stream.write(text)
        with open(constants_path, "w", encoding="utf-8") as stream:
            stream.writelines(f"{name} {value}\n" for name, value in constants.items())
    return problems, additions


# --- Self-test: a small library, and what may and may not become of it.

HEADER = """#include <stddef.h>
#include <stdint.h>
#define KVSTRATA_API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {{
#endif
typedef struct kvstrata_handle kvstrata_handle;
enum {{ KVSTRATA_ONE = 1{constants} }};
typedef struct kvstrata_key {{
  uint8_t bytes[32];
  {key}
}} kvstrata_key;
typedef struct kvstrata_options {{
  uint32_t struct_size;
  {flags}
  {members}
}} kvstrata_options;
KVSTRATA_API int32_t kvstrata_open(const kvstrata_options* options, {parameter} key, kvstrata_handle** out);
{functions}
#ifdef __cplusplus
}}
#endif
"""
SOURCE = """#include "handle.h"
extern "C" {{
int32_t kvstrata_open(const kvstrata_options* options, {parameter} key, kvstrata_handle**) {{
  return key == nullptr ? 0 : static_cast<int32_t>(options->struct_size);
}}
{bodies}
}}
"""
BASE = {"constants": ", KVSTRATA_TWO = 2", "key": "", "flags": "uint32_t flags;", "members": "uint64_t size;",
        "parameter": "const kvstrata_key*", "functions": "KVSTRATA_API uint32_t kvstrata_number(uint32_t which);",
        "bodies": "uint32_t kvstrata_number(uint32_t which) { return which; }", "handle": "int x;"}
MORE = {"functions": BASE["functions"] + "KVSTRATA_API int32_t kvstrata_more(void);",
        "bodies": BASE["bodies"] + "int32_t kvstrata_more() { return 1; }"}
# (what, the change, does it break, what has come on top)
PLANTED = (
    ("nothing", {}, False, []),
    ("a handle's inside", {"handle": "int x[7];"}, False, []),
    ("a function added", MORE, False, ["kvstrata_more"]),
    ("a member appended", {"members": "uint64_t size; uint64_t more;"}, False, ["kvstrata_options.more"]),
    ("a constant added", {"constants": ", KVSTRATA_TWO = 2, KVSTRATA_SIX = 6"}, False, ["KVSTRATA_SIX"]),
    ("a function removed", {"functions": "", "bodies": ""}, True, []),
    ("a member's type changed", {"members": "int64_t size;"}, True, []),
    ("a member changed and one appended", {"members": "int64_t size; uint64_t more;"}, True, []),
    ("a member inserted", {"members": "uint64_t more; uint64_t size;"}, True, []),
    ("a member split", {"members": "uint32_t size; uint32_t more;"}, True, []),
    ("a member removed", {"members": ""}, True, []),
    ("a member renamed", {"members": "uint64_t length;"}, True, []),
    ("two members swapped", {"flags": "int32_t size;", "members": "uint64_t flags;"}, True, []),
    ("a member appended to a struct of fixed size", {"key": "uint8_t more;"}, True, []),
    ("a parameter's type changed", {"parameter": "kvstrata_key*"}, True, []),
    ("a result's type changed", {"functions": "KVSTRATA_API uint64_t kvstrata_number(uint32_t which);",
                                 "bodies": "uint64_t kvstrata_number(uint32_t which) { return which; }"}, True, []),
    ("a constant's value changed", {"constants": ", KVSTRATA_TWO = 3"}, True, []),
    ("a constant removed", {"constants": ""}, True, []),
)


def plant(folder, compilers, change):
    """Builds the small library; its description and its constants."""
    parts = {**BASE, **change}
    headers = os.path.join(folder, "include/kvstrata")
    os.makedirs(headers)
    texts = {"version.h": "#define KVSTRATA_ABI_VERSION 0\n", "kernels.h": "",
             "c_api.h": HEADER.format(**parts),
             "../../handle.h": f'#include "kvstrata/c_api.h"\nstruct kvstrata_handle {{ {parts["handle"]} }};\n',
             "../../library.cc": SOURCE.format(**parts)}
    for name, text in texts.items():
        with open(os.path.join(headers, name), "w", encoding="utf-8") as stream:
            stream.write(text)
    library = os.path.join(folder, "library.so")
    subprocess.run([compilers[1], "-shared", "-fPIC", "-g2", "-I", os.path.join(folder, "include"),
                    os.path.join(folder, "library.cc"), "-o", library], check=True)
    return describe(library, os.path.join(folder, "include")), constants_of(folder, compilers[0])[1]


def self_test(compilers):
    problems, base = [], None
    for what, change, breaks, on_top in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            types, constants = plant(folder, compilers, change)
        base = base or (types, constants)
        found, additions = compare_types(base[0], types)
        more_found, more_additions = compare_constants(base[1], constants)
        if bool(found + more_found) != breaks:
            problems.append(f"{what}: {'not found' if breaks else 'found'} {found + more_found}")
        if not breaks and additions + more_additions != on_top:
            problems.append(f"{what}: on top {additions + more_additions}, not {on_top}")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--library")
    parser.add_argument("--cc", required=True)
    parser.add_argument("--cxx")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if not shutil.which("abidw") or not shutil.which("abidiff"):
        print("abidw and abidiff (Debian: abigail-tools) are not installed: nothing is compared")
        return TOOLS_MISSING

    if arguments.self_test:
        problems = self_test((arguments.cc, arguments.cxx))
        what = f"{len(PLANTED)} planted changes"
    else:
        problems, additions = check(arguments.root, arguments.library, arguments.cc, arguments.cuda, arguments.write)
        what = "on top of the baseline: " + (", ".join(additions) or "nothing")
    for problem in problems:
        print(problem)
    print(f"abi baseline: {what}; {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
