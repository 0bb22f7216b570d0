# SPDX-License-Identifier: Apache-2.0
"""The C ABI as data: size and offset of every public struct's members, value of every constant, every signature.

Names and types are read from the public headers; sizes, offsets and values are asked of the C compiler, by a program
made for that. The outcome is capi/abi/abi.json. What bindings without a C compiler need is generated from it: the
declarations of the Python package and of the Rust crate kvstrata-sys.

usage: abi_data.py ROOT --cc CC          compares the committed files with what the headers say now
       abi_data.py ROOT --cc CC --write  writes them anew; look at the difference before committing it
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import abi_bindings

# Of libkvstrata, and of libkvstrata_cuda, whose header includes them.
HEADERS = ("version.h", "c_api.h", "kernels.h")
CUDA_HEADERS = ("cuda.h",)
DATA = "capi/abi/abi.json"
STRUCT = re.compile(r"(?:typedef )?struct (kvstrata_\w+) \{([^{}]*)\} ?(kvstrata_\w+)?;")
CALLBACK = re.compile(r"typedef ([\w ]+?) ?\(\*(kvstrata_\w+)\)\(([^()]*)\);")
FUNCTION = re.compile(r"KVSTRATA_API ([^;(]*?[ *])(kvstrata_\w+)\(([^;]*)\);")
MEMBER_FUNCTION = re.compile(r"^([\w ]+?)( ?\*?) ?\(\*(\w+)\)\((.*)\)$")
# The headers are little-endian and 64 bits wide by their text; the data is that of x86-64 and 64-bit Arm Linux.
POINTER_BYTES = 8


def plain_text(root, header):
    with open(os.path.join(root, "include/kvstrata", header), encoding="utf-8") as stream:
        text = stream.read()
    defines = dict(re.findall(r"^#define (KVSTRATA_\w+) (\d+)$", text, re.MULTILINE))
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#.*(?:\\\n.*)*$", "", text, flags=re.MULTILINE)
    return " ".join(text.split()), defines


def normal_type(text):
    return re.sub(r"\s*\*\s*", "*", " ".join(text.split())).strip()


def parse_parameters(text):
    """[[name, type], ...]; unnamed parameters are called a0, a1, ..."""
    out = []
    if text.strip() in ("", "void"):
        return out
    for index, part in enumerate(text.split(",")):
        found = re.fullmatch(r"(.*[ *])(\w+)", part.strip())
        if found and found.group(1).strip() and not re.fullmatch(r"(const|struct)", found.group(1).strip()):
            out.append([found.group(2), normal_type(found.group(1))])
        else:
            out.append([f"a{index}", normal_type(part)])
    return out


def parse_members(body, where):
    out = []
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        function = MEMBER_FUNCTION.match(statement)
        if function:
            out.append({"name": function.group(3), "type": "function",
                        "returns": normal_type(function.group(1) + function.group(2)),
                        "parameters": parse_parameters(function.group(4))})
            continue
        found = re.fullmatch(r"((?:const )?(?:struct )?\w+(?: const)?[ *]+(?:const\*)?)(.*)", statement)
        if not found:
            raise SystemExit(f"{where}: cannot read member '{statement}'")
        for name in found.group(2).split(","):
            declared = re.fullmatch(r"\s*(\**)(\w+)(?:\[(\d+)\])?(?:\[(\d+)\])?\s*", name)
            if not declared:
                raise SystemExit(f"{where}: cannot read member '{statement}'")
            member = {"name": declared.group(2), "type": normal_type(found.group(1) + declared.group(1))}
            if declared.group(3):
                member["count"] = int(declared.group(3)) * int(declared.group(4) or 1)
            out.append(member)
    return out


def parse(root, headers):
    data = {"constants": {}, "structs": {}, "handles": [], "callbacks": {}, "functions": {}}
    for header in headers:
        text, defines = plain_text(root, header)
        for name, value in defines.items():
            data["constants"][name] = int(value)
        for body in re.findall(r"enum \{([^{}]*)\};", text):
            for name in re.findall(r"\b(KVSTRATA_\w+) =", body):
                data["constants"][name] = None
        for name, body, _ in STRUCT.findall(text):
            data["structs"][name] = {"header": header, "members": parse_members(body, name)}
        for returns, name, parameters in CALLBACK.findall(text):
            data["callbacks"][name] = {"returns": normal_type(returns), "parameters": parse_parameters(parameters)}
        for returns, name, parameters in FUNCTION.findall(text):
            data["functions"][name] = {"header": header, "returns": normal_type(returns),
                                       "parameters": parse_parameters(parameters)}
        handles = re.findall(r"typedef struct (kvstrata_\w+) \1;", text)
        data["handles"] += [name for name in handles if name not in data["structs"]]
    return data


def probe_source(data, headers):
    lines = [f'#include "kvstrata/{header}"' for header in headers]
    lines += ["#include <stdio.h>", "#define VALUE(x) printf(\"%lld\\n\", (long long)(x))",
              "int main(void) {"]
    for name in data["constants"]:
        lines.append(f"  VALUE({name});")
    for name, struct in data["structs"].items():
        lines.append(f"  VALUE(sizeof({name}));")
        for member in struct["members"]:
            lines.append(f"  VALUE(offsetof({name}, {member['name']}));")
            lines.append(f"  VALUE(sizeof((({name}*)0)->{member['name']}));")
    return "\n".join(lines + ["  return 0;", "}"]) + "\n"


def measure(root, compiler, headers):
    """What the headers declare, with what the compiler says of it."""
    data = parse(root, headers)
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "probe.c"), os.path.join(folder, "probe")
        with open(source, "w", encoding="utf-8") as stream:
            stream.write(probe_source(data, headers))
        subprocess.run([compiler, "-std=c99", "-I", os.path.join(root, "include"), source, "-o", program], check=True)
        answers = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    numbers = iter(int(answer) for answer in answers)
    for name in data["constants"]:
        data["constants"][name] = next(numbers)
    for struct in data["structs"].values():
        struct["size"] = next(numbers)
        for member in struct["members"]:
            member["offset"], member["size"] = next(numbers), next(numbers)
    if next(numbers, None) is not None:
        raise SystemExit("the probe gave more numbers than were asked for")
    return data


def check_gaps(data):
    """A struct of this ABI has no padding: each member begins where the one before it ends."""
    problems = []
    for name, struct in data["structs"].items():
        end = 0
        for member in struct["members"]:
            if member["offset"] != end:
                problems.append(f"{name}.{member['name']}: offset {member['offset']}, the one before ends at {end}")
            end = member["offset"] + member["size"]
        if end != struct["size"]:
            problems.append(f"{name}: size {struct['size']}, its last member ends at {end}")
    return problems


def as_text(data):
    """JSON with one line for each member and constant, so that a change shows as such."""
    def line(value):
        return json.dumps(value)
    out = ["{"]
    out.append('"constants": {\n' + ",\n".join(f"  {line(k)}: {v}" for k, v in data["constants"].items()) + "\n},")
    out.append(f'"handles": {line(data["handles"])},')
    structs = []
    for name, struct in data["structs"].items():
        members = ",\n".join("    " + line(member) for member in struct["members"])
        structs.append(f'  {line(name)}: {{"header": {line(struct["header"])}, "size": {struct["size"]}, '
                       f'"members": [\n{members}\n  ]}}')
    out.append('"structs": {\n' + ",\n".join(structs) + "\n},")
    for key in ("callbacks", "functions"):
        entries = ",\n".join(f"  {line(name)}: {line(entry)}" for name, entry in data[key].items())
        out.append(f'"{key}": {{\n{entries}\n}}' + ("," if key == "callbacks" else ""))
    return "\n".join(out) + "\n}\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--cc", required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()

    data = measure(arguments.root, arguments.cc, HEADERS + CUDA_HEADERS)
    problems = check_gaps(data)
    expected = {DATA: as_text(data)}
    expected.update(abi_bindings.generate(data))
    for path, text in expected.items():
        full = os.path.join(arguments.root, path)
        if arguments.write:
            with open(full, "w", encoding="utf-8") as stream:
                stream.write(text)
            continue
        with open(full, encoding="utf-8") as stream:
            if stream.read() != text:
                problems.append(f"{path} is not what the headers say; after an intended change run: "
                                f"python3 tests/abi/abi_data.py . --cc cc --write")
    for problem in problems:
        print(problem)
    members = sum(len(struct["members"]) for struct in data["structs"].values())
    print(f"abi data: {len(data['constants'])} constants, {len(data['structs'])} structs with {members} members, "
          f"{len(data['functions'])} functions; {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
