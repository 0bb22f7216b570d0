# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include line that cmake/layers.txt does not allow.

usage: include_edges.py ROOT              checks the tree at ROOT
       include_edges.py ROOT --self-test  plants forbidden includes in a copy and expects each to be found
"""

import os
import re
import shutil
import sys
import tempfile

import source_tree

TABLE = "cmake/layers.txt"
FOLDERS = ("include", "lib", "capi", "kernels", "examples", "tests", "benchmarks")

INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|include_next|import)[ \t]+(.*)$", re.MULTILINE)
NAMED = re.compile(r'^(?:<([^>]+)>|"([^"]+)")\s*$')

THREADS = {"atomic_wait", "barrier", "condition_variable", "future", "latch", "mutex", "semaphore", "shared_mutex",
           "stop_token", "thread", "threads.h", "pthread.h"}
STREAMS = {"cstdio", "stdio.h", "filesystem", "fstream", "iostream", "istream", "ostream", "syncstream", "print"}
C_STANDARD = {"assert.h", "complex.h", "ctype.h", "errno.h", "fenv.h", "float.h", "inttypes.h", "iso646.h", "limits.h",
              "locale.h", "math.h", "setjmp.h", "signal.h", "stdalign.h", "stdarg.h", "stdatomic.h", "stdbool.h",
              "stddef.h", "stdint.h", "stdlib.h", "stdnoreturn.h", "string.h", "tgmath.h", "time.h", "uchar.h",
              "wchar.h", "wctype.h"}
LIBRARIES = (("absl/", "absl"), ("zstd", "zstd"), ("xxh", "xxhash"), ("nlohmann/", "json"), ("catch2/", "catch"),
             ("benchmark/", "benchmark"), ("cuda", "cuda"), ("cublas", "cuda"), ("rocksdb/", "peers"),
             ("lmdb.h", "peers"))
SIMD = re.compile(r"^(.*intrin\.h|arm_neon\.h|arm_sve\.h|hwy/.*)$")


class Table:
    """cmake/layers.txt: rooms by path, and for each room the set of names it may include."""

    def __init__(self, text):
        self.paths = []  # (path prefix, room)
        self.allowed = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "room" and len(words) >= 3:
                self.paths += [(path, words[1]) for path in words[2:]]
                self.allowed.setdefault(words[1], {words[1]})
            elif words[0] == "allow" and len(words) >= 4 and words[2] == ":" and words[1] in self.allowed:
                self.allowed[words[1]] |= self._expand(words[3:], number)
            else:
                raise SystemExit(f"{TABLE}:{number}: cannot read this line")
        self.paths.sort(key=lambda entry: -len(entry[0]))
        worlds = {"std", "threads", "streams", "system", "simd"} | {world for _, world in LIBRARIES}
        for room, names in self.allowed.items():
            for name in names - worlds:
                if name not in self.allowed:
                    raise SystemExit(f"{TABLE}: {room} may include {name}, which is no room and no outside world")

    def _expand(self, words, number):
        names = set()
        for word in words:
            if word.startswith("@"):
                if word[1:] not in self.allowed:
                    raise SystemExit(f"{TABLE}:{number}: {word} comes before its room")
                names |= self.allowed[word[1:]] - {word[1:]}
            else:
                names.add(word)
        return names

    def room(self, path):
        return next((room for prefix, room in self.paths if path.startswith(prefix)), None)


def outside_world(name):
    for prefix, world in LIBRARIES:
        if name.startswith(prefix):
            return world
    if SIMD.match(name):
        return "simd"
    if name in THREADS:
        return "threads"
    if name in STREAMS:
        return "streams"
    if name in C_STANDARD or ("." not in name and "/" not in name):
        return "std"
    return "system"


def resolve(root, path, name):
    """The repository's file that `name` means, seen from `path`; None for a header from outside."""
    for candidate in (name, os.path.join("include", name), os.path.join(os.path.dirname(path), name)):
        candidate = os.path.normpath(candidate)
        if candidate.startswith(FOLDERS) and os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def check(root, paths):
    table = Table(source_tree.read(root, TABLE))
    problems = []
    for path in paths:
        room = table.room(path)
        if room is None:
            problems.append(f"{path}: no room in {TABLE} holds this file")
            continue
        text = source_tree.code_only(source_tree.read(root, path), keep_strings=True)
        for match in INCLUDE.finditer(text):
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            named = NAMED.match(match.group(1).strip())
            if not named:
                problems.append(f"{where}: an #include must name its file")
                continue
            name = named.group(1) or named.group(2)
            target = resolve(root, path, name)
            if target is None and named.group(2) and name.startswith(tuple(f + "/" for f in FOLDERS)):
                problems.append(f"{where}: {name} does not exist")
                continue
            goal = table.room(target) if target else outside_world(name)
            if goal is None:
                problems.append(f"{where}: no room in {TABLE} holds {target}")
            elif goal not in table.allowed[room]:
                problems.append(f"{where}: {room} may not include {goal} ({name})")
    return problems


# (file, its include, the arrow that must be reported)
PLANTED = (
    ("lib/trie/planted.h", '"lib/storage/storage.h"', "trie may not include storage"),
    ("lib/trie/planted.cc", "<thread>", "trie may not include threads"),
    ("lib/plan/planted.h", '"lib/storage/storage.h"', "plan may not include storage"),
    ("lib/plan/planted.cc", "<fcntl.h>", "plan may not include system"),
    ("lib/format/planted.h", "<zstd.h>", "format may not include zstd"),
    ("lib/engine/planted.cc", '"xxhash.h"', "engine may not include xxhash"),
    ("lib/base/planted.h", '"kvstrata/kernels.h"', "base may not include kernels_h"),
    ("lib/engine/planted.h", "<iostream>", "engine may not include streams"),
    ("kernels/reference/planted.cc", '"lib/base/status.h"', "kernels may not include base"),
    ("kernels/reference/planted.h", '"absl/types/span.h"', "kernels may not include absl"),
    ("include/kvstrata/planted.hpp", '"lib/base/status.h"', "cpp_api may not include base"),
    ("include/kvstrata/planted.hpp", '"../../lib/base/status.h"', "cpp_api may not include base"),
    ("capi/planted.cc", '"lib/trie/trie.h"', "capi may not include trie"),
    ("examples/planted/main.cc", '"lib/base/status.h"', "examples may not include base"),
    ("tests/unit/trie/planted.cc", '"lib/layout/layout.h"', "unit_trie may not include layout"),
    ("lib/base/planted.h", '"lib/base/no_such_file.h"', "does not exist"),
    ("lib/base/planted.h", "KVSTRATA_SOME_MACRO", "must name its file"),
    ("lib/unheard_of/planted.h", "<vector>", "no room"),
)


def self_test(root):
    problems = []
    with tempfile.TemporaryDirectory() as copy:
        for path in source_tree.files(root, source_tree.C_SUFFIXES) + [TABLE]:
            os.makedirs(os.path.dirname(os.path.join(copy, path)), exist_ok=True)
            shutil.copyfile(os.path.join(root, path), os.path.join(copy, path))
        for path, include, expected in PLANTED:
            full = os.path.join(copy, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as stream:
                stream.write(f'/* #include "lib/in/a/comment.h" */\n#  include {include}  // why\n')
            found = check(copy, [path])
            os.remove(full)
            if len(found) != 1 or expected not in found[0] or not found[0].startswith(path):
                problems.append(f"planted {include} in {path}: expected '{expected}', got {found}")
    return problems


if __name__ == "__main__":
    if sys.argv[2:] == ["--self-test"]:
        sys.exit(source_tree.report(self_test(sys.argv[1]), "include edges, self-test"))
    everything = source_tree.files(sys.argv[1], source_tree.C_SUFFIXES)
    sys.exit(source_tree.report(check(sys.argv[1], everything), "include edges"))
