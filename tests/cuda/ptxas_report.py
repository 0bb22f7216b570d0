#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels for every architecture that is to be supported, and reads ptxas' report.

Fails where a kernel does not compile or spills registers, where the movement kernels have no 16-byte loads and stores,
and where the table of registers (kernels/cuda/RESOURCES.md) is not what this compiler makes; `--write` writes it anew.
The table belongs to one release of nvcc: with another one it is not compared, which is said.

usage: ptxas_report.py ROOT [--write]
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ARCHITECTURES = ("80", "90", "100")
# Of which the table tells.
SHOWN = "90"
TABLE = "kernels/cuda/RESOURCES.md"
# No fused multiply-add: which of two instantiations of a kernel runs depends on alignment, and both give the same bits.
FLAGS = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-fmad=false", "-Werror", "all-warnings"]
SKIPPED = 77


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return done.stdout + done.stderr


def compile_one(root, folder, source, arch):
    """The PTX of a source, and ptxas' words about it."""
    ptx = os.path.join(folder, "%s.%s.ptx" % (os.path.basename(source), arch))
    run(["nvcc", *FLAGS, "-arch=compute_" + arch, "-I", root, "-I", os.path.join(root, "include"), "-ptx", source,
         "-o", ptx])
    report = run(["ptxas", "-arch=sm_" + arch, "-v", ptx, "-o", os.devnull])
    with open(ptx, encoding="utf-8") as text:
        return text.read(), report


def readable(symbol):
    """A kernel's own name: RunKernel<...::Pack<8u> >(...) is Pack<8>."""
    name = run(["c++filt", symbol]).strip()
    name = name[name.index("RunKernel<") + len("RunKernel<"):name.rindex(">(")]
    name = name.replace("kvstrata::kernels::cuda::", "").replace("(anonymous namespace)::", "")
    return re.sub(r"(\d)u\b", r"\1", name.replace(" >", ">")).strip()


def kernels_of(report):
    """(name, registers, stack, spilled bytes) of each kernel in ptxas' report."""
    for part in report.split("Compiling entry function")[1:]:
        symbol = re.search(r"'(\w+)'", part).group(1)
        numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        yield readable(symbol), registers, int(numbers.group(1)), int(numbers.group(2)) + int(numbers.group(3))


def release():
    return re.search(r"release ([\d.]+)", run(["nvcc", "--version"])).group(1)


def main():
    root = os.path.abspath(sys.argv[1])
    if shutil.which("nvcc") is None:
        print("skipped: there is no nvcc, so no CUDA kernel was compiled")
        return SKIPPED
    folder = os.path.join(root, "kernels/cuda")
    sources = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".cu"))
    problems, rows = [], []
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [(source, arch, pool.submit(compile_one, root, scratch, source, arch))
                for source in sources for arch in ARCHITECTURES]
        for source, arch, job in jobs:
            ptx, report = job.result()
            where = "%s for sm_%s" % (os.path.basename(source), arch)
            for name, registers, stack, spilled in kernels_of(report):
                if spilled:
                    problems.append("%s: %s spills %d bytes" % (where, name, spilled))
                if arch == SHOWN:
                    rows.append("| %s | `%s` | %d | %d |" % (os.path.basename(source), name, registers, stack))
            wide = [re.search(kind + r"(\.global)?(\.nc)?\.v4\.\w32", ptx) is not None for kind in ("ld", "st")]
            if os.path.basename(source) == "movement.cu" and not all(wide):
                problems.append("%s: no 16-byte %s" % (where, "stores" if wide[0] else "loads"))
    made = "\n".join([
        "# What the CUDA kernels take", "",
        "Registers of a thread and bytes of its stack, as ptxas of CUDA %s has them for sm_%s; none spills." %
        (release(), SHOWN),
        "Written by `python3 tests/cuda/ptxas_report.py . --write`.", "",
        "| source | kernel | registers | stack |", "|---|---|---|---|", *sorted(rows), ""])
    path = os.path.join(root, TABLE)
    if "--write" in sys.argv[2:]:
        with open(path, "w", encoding="utf-8") as table:
            table.write(made)
    with open(path, encoding="utf-8") as table:
        kept = table.read()
    if ("CUDA %s has" % release()) not in kept:
        print("skipped: %s is of another release of nvcc" % TABLE)
    elif kept != made:
        problems.append("%s is not what is compiled: --write, and look at the difference" % TABLE)
    for problem in problems:
        print(problem)
    print("%d kernels of %d sources for %d architectures: %d problem(s)" %
          (len(rows), len(sources), len(ARCHITECTURES), len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
