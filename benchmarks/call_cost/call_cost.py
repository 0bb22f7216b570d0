# SPDX-License-Identifier: Apache-2.0
"""What a call costs in each language, in instructions that callgrind counts, over the engine's own C++.

usage: call_cost.py ROOT FOLDER LIBRARY [--valgrind=PROGRAM --cargo=PROGRAM --go=PROGRAM] [LANGUAGE...]

ROOT is the repository, FOLDER has the programs call_cost_LANGUAGE, LIBRARY is the shared library. A case runs with two
counts of repetitions in processes of their own; the difference of their instructions, over that of the counts, is one
call. Opening, storing and closing are the same in both and fall out. Workers count too: a restore is whole.

    lookup      of 2,049 tokens, 2,048 stored in 32 blocks, and its info
    miss        of 2,049 tokens whose first block is absent: the engine has so little to do that all of a call shows
    restore     a lookup, and all of its 32 KiB from memory into one buffer
    pinned_hit  a lookup, and all of its 32 KiB pinned where they lie: pin, its info, its one range, and its end

What has no program or tool is named and left out. Instructions are no time; they do not depend on what else runs. Of
Go's, CGO_CALLS times a call of C that does nothing are taken away: what cgo itself costs. Its collector and its
preemption are off, since valgrind 3.19 does not survive their signals.
"""

import os
import re
import subprocess
import sys
import tempfile

CASES = ("lookup", "miss", "restore", "pinned_hit")
FEW, MANY = 20, 220
GOALS = {"c": "<=1.05", "cpp": "<=1.05", "rust": "<=1.10", "go": "<=1.5", "python": "(reported)"}
# lookup, info, destroy; of a restore also create, start, wait, destroy; of a pinned hit pin, info, range, destroy.
CGO_CALLS = {"lookup": 3, "miss": 3, "restore": 7, "pinned_hit": 7}


def instructions(valgrind, command, environment):
    """Of all threads of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/out", *command],
                             env=environment, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(run.stderr[-400:])
        return int(re.search(r"Collected : (\d+)", run.stderr).group(1))


def per_call(valgrind, command, case, environment):
    few, many = (instructions(valgrind, [*command, case, str(count)], environment) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def rust_program(root, folder, library, cargo):
    target = os.path.join(folder, "cargo")
    environment = {**os.environ, "KVSTRATA_LIB_DIR": os.path.dirname(library), "CARGO_TARGET_DIR": target}
    subprocess.run([cargo, "build", "--release", "--offline", "--locked", "--quiet", "--example", "call_cost",
                    "--manifest-path", os.path.join(root, "examples/rust/Cargo.toml")], env=environment, check=True)
    return [os.path.join(target, "release/examples/call_cost")]


def go_program(root, folder, library, go):
    with open(os.path.join(folder, "kvstrata.pc"), "w", encoding="utf-8") as file:
        file.write(f"Name: kvstrata\nDescription: of this build\nVersion: 0\nCflags: -I{root}/include\n"
                   f"Libs: -L{os.path.dirname(library)} -lkvstrata\n")
    program = os.path.join(folder, "call_cost_go")
    environment = {**os.environ, "PKG_CONFIG_PATH": folder, "CGO_ENABLED": "1", "GOPROXY": "off", "GOENV": "off",
                   "GOFLAGS": "-mod=mod -buildvcs=false", "GOTOOLCHAIN": "local",
                   "GOCACHE": os.path.join(folder, "go/cache"), "GOPATH": os.path.join(folder, "go/path")}
    subprocess.run([go, "build", "-o", program, "./callcost"], cwd=os.path.join(root, "examples/go"), env=environment,
                   check=True)
    return [program]


def commands(root, folder, library, tools):
    found = {}
    for language in ("core", "c", "cpp"):
        found[language] = [os.path.join(folder, f"call_cost_{language}")]
    if tools["cargo"]:
        found["rust"] = rust_program(root, folder, library, tools["cargo"])
    if tools["go"]:
        found["go"] = go_program(root, folder, library, tools["go"])
    found["python"] = [sys.executable, "-B", os.path.join(root, "examples/python/tests/call_cost.py")]
    return found


def main(arguments):
    tools = {name: "" for name in ("valgrind", "cargo", "go")}
    words = []
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--"):
            tools[name] = "" if value.endswith("-NOTFOUND") else value
        else:
            words.append(argument)
    root, folder, library, *languages = words
    if not tools["valgrind"]:
        print("call_cost: left out, valgrind is not there")
        return 0
    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library), "KVSTRATA_LIBRARY": library,
                   "PYTHONPATH": os.path.join(root, "examples/python"), "GODEBUG": "asyncpreemptoff=1", "GOGC": "off"}
    found = commands(root, folder, library, tools)
    cgo = per_call(tools["valgrind"], found["go"], "cgo", environment) if "go" in found else 0
    for case in CASES:
        core = per_call(tools["valgrind"], found["core"], case, environment)
        print(f"call_cost_{case}: {core:.0f} instructions in the engine itself", flush=True)
        for language in languages or found:
            if language == "core":
                continue
            cost = per_call(tools["valgrind"], found[language], case, environment)
            if language == "go":
                cost -= CGO_CALLS[case] * cgo
            goal = "(reported)" if case == "miss" else GOALS[language]
            print(f"ratio call_cost_{language}_{case} {cost / core:.3f} goal {goal} over {core:.0f} "
                  f"instructions", flush=True)
    for tool, language in (("cargo", "rust"), ("go", "go")):
        if not tools[tool]:
            print(f"call_cost: {language} left out, {tool} is not there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
