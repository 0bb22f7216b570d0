#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what ptxas said of the CUDA kernels when libkvstrata_cuda was compiled, for every architecture of the build.

Fails where a kernel spills registers or may ask for more shared memory than an architecture has, where the movement
kernels have no 16-byte loads and stores, and where the table of registers and shared memory
(kernels/cuda/RESOURCES.md) is not what this compiler and the launches make; `--write` writes it anew. The table belongs
to one release of nvcc: with another one it is not compared, which is said.

usage: ptxas_report.py ROOT OBJECTS LAUNCHES [--write]

OBJECTS: the folder of the kernels' objects; each has its report beside it (kernels/cuda/library/CMakeLists.txt).
LAUNCHES: the program that prints what each launch asks for (tests/cuda/shared_bytes.cc).
"""
import os
import re
import subprocess
import sys

# Of which the table tells.
SHOWN = "sm_90"
TABLE = "kernels/cuda/RESOURCES.md"
GEOMETRIES = ("V4-Flash", "V4-Pro")
# What a block can have if it asks; of the multiprocessor of SHOWN: registers, threads, bytes, and bytes that each block
# takes beside its own.
SHARED_LIMITS = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
QUERY_BYTES = 64 * (512 + 8) * 2
REGISTERS, THREADS, SHARED, RESERVED = 65536, 2048, 228 << 10, 1 << 10


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return done.stdout + done.stderr


def demangled(symbol):
    types = [] if symbol.startswith("_Z") else ["--types"]  # a type's name is none of a function
    return run(["c++filt", *types, symbol]).strip()


def readable(name):
    """A kernel's own name: kvstrata::kernels::cuda::(anonymous namespace)::Pack<8u> is Pack<8>."""
    name = name.replace("kvstrata::kernels::cuda::", "").replace("(anonymous namespace)::", "")
    return re.sub(r"(\d)u\b", r"\1", name.replace(" >", ">")).strip()


def kernel_of(symbol):
    """Of RunKernel<...>(...)."""
    name = demangled(symbol)
    return readable(name[name.index("RunKernel<") + len("RunKernel<"):name.rindex(">(")])


def kernels_of(report):
    """(name, architecture, registers, stack, spilled bytes, static shared bytes) of each kernel in ptxas' report."""
    for part in report.split("Compiling entry function")[1:]:
        symbol, arch = re.search(r"'(\w+)' for '(\w+)'", part).groups()
        numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        static = re.search(r"(\d+) bytes smem", part)
        yield (kernel_of(symbol), arch, registers, int(numbers.group(1)),
               int(numbers.group(2)) + int(numbers.group(3)), int(static.group(1)) if static else 0)


class Launched:
    """What the launches of a kernel ask for."""

    def __init__(self, threads, most):
        self.threads, self.most = threads, most
        self.asked = {}

    def blocks(self, registers, shared):
        """How many blocks fit into a multiprocessor of SHOWN."""
        return min(REGISTERS // (-(-registers // 8) * 8 * self.threads), THREADS // self.threads, 32,
                   SHARED // (shared + RESERVED))


def launches_of(program):
    kernels = {}
    for line in run([program]).splitlines():
        geometry, symbol, threads, asked, most = line.split()
        kernel = kernels.setdefault(readable(demangled(symbol)), Launched(int(threads), int(most)))
        kernel.asked[geometry] = max(kernel.asked.get(geometry, 0), int(asked))
    return kernels


def release():
    return re.search(r"release ([\d.]+)", run(["nvcc", "--version"])).group(1)


def narrow_moves(root):
    """The kinds of 16-byte access that the movement kernels lack."""
    ptx = run(["nvcc", "-std=c++20", "--expt-relaxed-constexpr", "-arch=compute_" + SHOWN[3:], "-I", root, "-I",
               os.path.join(root, "include"), "-ptx", os.path.join(root, "kernels/cuda/movement.cu"), "-o", "-"])
    return [kind for kind in ("ld", "st") if not re.search(kind + r"(\.global)?(\.nc)?\.v4\.\w32", ptx)]


def main():
    root, objects = os.path.abspath(sys.argv[1]), sys.argv[2]
    launches = launches_of(os.path.abspath(sys.argv[3]))
    problems, rows, architectures = [], [], set()
    sources = sorted(name[:-len(".o.ptxas")] for name in os.listdir(objects) if name.endswith(".cu.o.ptxas"))
    for source in sources:
        with open(os.path.join(objects, source + ".o.ptxas"), encoding="utf-8") as report:
            found = list(kernels_of(report.read()))
        for name, arch, registers, stack, spilled, static in found:
            architectures.add(arch)
            if spilled:
                problems.append("%s for %s: %s spills %d bytes" % (source, arch, name, spilled))
            if name not in launches:
                problems.append("%s: %s is launched by nothing in tests/cuda/shared_bytes.cc" % (source, name))
                continue
            launch = launches[name]
            if static + launch.most > SHARED_LIMITS[arch]:
                problems.append("%s for %s: %s may ask for %d bytes of shared memory" %
                                (source, arch, name, launch.most))
            if arch == SHOWN:
                asked = [static + launch.asked.get(geometry, 0) for geometry in GEOMETRIES]
                numbers = (registers, stack, launch.threads, *asked, static + launch.most,
                           launch.blocks(registers, max(asked)))
                rows.append("| %s | `%s` | %s |" % (source, name, " | ".join(str(number) for number in numbers)))
    problems += ["movement.cu: no 16-byte access of kind " + kind for kind in narrow_moves(root)]
    if not rows:
        problems.append("%s: no report has kernels for %s" % (objects, SHOWN))
    made = "\n".join([
        "# What the CUDA kernels take", "",
        "Registers of a thread and bytes of its stack, as ptxas of CUDA %s has them for %s; none spills. Threads of" %
        (release(), SHOWN),
        "a block and bytes of its shared memory, as launches ask for them in each model's geometry, and at most. How",
        "many blocks a multiprocessor of that architecture has room for, in the larger geometry. A GPU that gives a",
        "block 99 KiB only (compute capability 8.6, 8.9, 12.0) gets `AttendTensor` in a form that takes %d bytes" %
        QUERY_BYTES,
        "less: it leaves the queries where they lie.", "",
        "Written by `python3 tests/cuda/ptxas_report.py . "
        "build/dev/kernels/cuda/library/CMakeFiles/kvstrata_cuda.dir/__",
        "build/dev/tests/cuda/cuda_shared_bytes --write`.",
        "", "| source | kernel | registers | stack | threads | shared, V4-Flash | V4-Pro | at most | blocks |",
        "|---|---|---|---|---|---|---|---|---|", *sorted(rows), ""])
    path = os.path.join(root, TABLE)
    if "--write" in sys.argv[4:]:
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
