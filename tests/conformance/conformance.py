# SPDX-License-Identifier: Apache-2.0
"""Runs a driver over the conformance cases and compares its answers with what the cases expect (README.md).

usage: conformance.py CASES_FOLDER -- DRIVER...
           the driver is called once for each file: DRIVER... FILE FOLDER
       conformance.py PAIRS_FOLDER --pairs -- DRIVER... [-- DRIVER...]...
           each driver writes a store with write.txt, and every driver answers read.txt on it
"""

import os
import subprocess
import sys
import tempfile

SKIPPED = 77


def expected_lines(path):
    """[(case, [(line number, expected answers), ...]), ...]"""
    cases = []
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            left, _, right = line.partition("=>")
            if left.split()[0] == "case":
                cases.append((left.split()[1], []))
                continue
            answers = right.split()
            if not any(answer.startswith("status=") for answer in answers):
                answers.insert(0, "status=OK")
            answers.sort(key=lambda answer: not answer.startswith("status="))
            cases[-1][1].append((number, " ".join(answers)))
    return cases


def compare(path, output):
    problems = []
    cases = expected_lines(path)
    lines = output.splitlines()
    if len(lines) != len(cases):
        problems.append(f"{path}: {len(cases)} cases, {len(lines)} lines of answers")
    for (name, steps), line in zip(cases, lines):
        given_name, _, rest = line.partition(": ")
        given = rest.split(" | ")
        if given_name != name or len(given) != len(steps):
            problems.append(f"{path}: case {name}: {len(steps)} steps, answered: {line}")
            continue
        for (number, expected), answer in zip(steps, given):
            if expected != answer:
                problems.append(f"{path}:{number}: expected {expected}\n    answered {answer}")
    return problems, len(cases)


def run(driver, path, scratch):
    return subprocess.run([*driver, path, scratch], stdout=subprocess.PIPE, text=True, timeout=300)


def run_all(folder, driver):
    """(problems, cases, what was skipped)"""
    problems, total = [], 0
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".txt")):
        path = os.path.join(folder, name)
        with tempfile.TemporaryDirectory() as scratch:
            done = run(driver, path, scratch)
        if done.returncode == SKIPPED:
            return [], 0, done.stdout.strip()
        found, count = compare(path, done.stdout)
        problems += found
        total += count
        if done.returncode != 0:
            problems.append(f"{path}: the driver ended with {done.returncode}")
    return problems, total, None


def run_pairs(folder, drivers):
    """Each driver writes a store; every driver, itself included, reads it."""
    problems, total = [], 0
    write, read = os.path.join(folder, "write.txt"), os.path.join(folder, "read.txt")
    for writer in drivers:
        with tempfile.TemporaryDirectory() as scratch:
            done = run(writer, write, scratch)
            problems += compare(write, done.stdout)[0]
            for reader in drivers:
                found, count = compare(read, run(reader, read, scratch).stdout)
                problems += [f"{problem}\n    written by {writer[-1]}, read by {reader[-1]}" for problem in found]
                total += count
    return problems, total, None


def main():
    rest = sys.argv[sys.argv.index("--"):]
    drivers = []
    for word in rest:
        if word == "--":
            drivers.append([])
        else:
            drivers[-1].append(word)
    pairs = "--pairs" in sys.argv
    problems, total, skipped = (run_pairs(sys.argv[1], drivers) if pairs else run_all(sys.argv[1], drivers[0]))
    if skipped is not None:
        print(skipped)
        return SKIPPED
    for problem in problems:
        print(problem)
    print(f"conformance: {total} {'pairs of writer and reader' if pairs else 'cases'}, {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
