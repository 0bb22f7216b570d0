#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what ptxas said of the CUDA kernels when libkvstrata_cuda was compiled, for every architecture of the build.

Fails where a kernel spills registers, where the movement kernels have no 16-byte loads and stores, and where the table
of registers (kernels/cuda/RESOURCES.md) is not what this compiler makes; `--write` writes it anew. The table belongs to
one release of nvcc: with another one it is not compared, which is said.

usage: ptxas_report.py ROOT OBJECTS [--write]

OBJECTS: the folder of the kernels' objects; each has its report beside it (kernels/cuda/library/CMakeLists.txt).
"""
import os
import re
import subprocess
import sys

# Of which the table tells.
SHOWN = "sm_90"
TABLE = "kernels/cuda/RESOURCES.md"


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return done.stdout + done.stderr


def readable(symbol):
    """A kernel's own name: RunKernel<...::Pack<8u> >(...) is Pack<8>."""
    name = run(["c++filt", symbol]).strip()
    name = name[name.index("RunKernel<") + len("RunKernel<"):name.rindex(">(")]
    name = name.replace("kvstrata::kernels::cuda::", "").replace("(anonymous namespace)::", "")
    return re.sub(r"(\d)u\b", r"\1", name.replace(" >", ">")).strip()


def kernels_of(report):
    """(name, architecture, registers, stack, spilled bytes) of each kernel in ptxas' report."""
    for part in report.split("Compiling entry function")[1:]:
        symbol, arch = re.search(r"'(\w+)' for '(\w+)'", part).groups()
        numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        yield readable(symbol), arch, registers, int(numbers.group(1)), int(numbers.group(2)) + int(numbers.group(3))


def release():
    return re.search(r"release ([\d.]+)", run(["nvcc", "--version"])).group(1)


def narrow_moves(root):
    """The kinds of 16-byte access that the movement kernels lack."""
    ptx = run(["nvcc", "-std=c++20", "--expt-relaxed-constexpr", "-arch=compute_" + SHOWN[3:], "-I", root, "-I",
               os.path.join(root, "include"), "-ptx", os.path.join(root, "kernels/cuda/movement.cu"), "-o", "-"])
    return [kind for kind in ("ld", "st") if not re.search(kind + r"(\.global)?(\.nc)?\.v4\.\w32", ptx)]


def main():
    root, objects = os.path.abspath(sys.argv[1]), sys.argv[2]
    problems, rows, architectures = [], [], set()
    sources = sorted(name[:-len(".o.ptxas")] for name in os.listdir(objects) if name.endswith(".cu.o.ptxas"))
    for source in sources:
        with open(os.path.join(objects, source + ".o.ptxas"), encoding="utf-8") as report:
            found = list(kernels_of(report.read()))
        for name, arch, registers, stack, spilled in found:
            architectures.add(arch)
            if spilled:
                problems.append("%s for %s: %s spills %d bytes" % (source, arch, name, spilled))
            if arch == SHOWN:
                rows.append("| %s | `%s` | %d | %d |" % (source, name, registers, stack))
    problems += ["movement.cu: no 16-byte access of kind " + kind for kind in narrow_moves(root)]
    if not rows:
        problems.append("%s: no report has kernels for %s" % (objects, SHOWN))
    made = "\n".join([
        "# What the CUDA kernels take", "",
        "Registers of a thread and bytes of its stack, as ptxas of CUDA %s has them for %s; none spills." %
        (release(), SHOWN),
        "Written by `python3 tests/cuda/ptxas_report.py . "
        "build/dev/kernels/cuda/library/CMakeFiles/kvstrata_cuda.dir/__ --write`.", "",
        "| source | kernel | registers | stack |", "|---|---|---|---|", *sorted(rows), ""])
    path = os.path.join(root, TABLE)
    if "--write" in sys.argv[3:]:
        with open(path, "w", encoding="utf-8") as table:
            table.write(made)
    with open(path, encoding="utf-8") as table:
        kept = table.read()
    if ("CUDA %s has" % release()) not in kept:
        print("not compared: %s is of another release of nvcc" % TABLE)
    elif kept != made:
        problems.append("%s is not what is compiled: --write, and look at the difference" % TABLE)
    for problem in problems:
        print(problem)
    print("%d kernels of %d sources for %s: %d problem(s)" %
          (len(rows), len(sources), ", ".join(sorted(architectures)), len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
