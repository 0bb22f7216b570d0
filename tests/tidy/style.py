# SPDX-License-Identifier: Apache-2.0
"""House rules that a machine can check: see CONTRIBUTING.md, section "Style".

usage: style.py ROOT              checks the tree at ROOT
       style.py ROOT --self-test  each rule must find its planted offence, and nothing else
"""

import os
import re
import sys
import tempfile

import source_tree

COLUMNS = 120
TEXT_SUFFIXES = source_tree.C_SUFFIXES + (".py", ".sh", ".cmake", ".in", ".map", ".txt", ".md", ".json", "Makefile",
                                          ".clang-format", ".clang-tidy", ".ci/run")
LICENSED_SUFFIXES = source_tree.C_SUFFIXES + (".py", ".sh")
LIBRARY = ("lib/", "capi/", "kernels/")

# Library code is a guest in its host's process: it never prints, ends the process, throws on purpose or changes what
# belongs to the whole process; and it does not use what cannot be used safely.
FORBIDDEN = (
    (r"\b(?:printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror|psignal)\s*\(", "prints"),
    (r"\bstd\s*::\s*(?:cout|cerr|clog)\b", "prints"),
    (r"\b(?:abort|exit|_exit|_Exit|quick_exit)\s*\(", "ends the process"),
    (r"\bstd\s*::\s*terminate\b", "ends the process"),
    (r"\bthrow\b(?!\s*\(\s*\))", "throws"),
    (r"\b(?:umask|setrlimit|sigaction|setenv|putenv|setlocale|chdir)\s*\(", "changes the whole process"),
    (r"\bsignal\s*\(\s*SIG", "changes the whole process"),
    (r"\babsl\s*::\s*Mutex", "misleads ThreadSanitizer; use lib/base/mutex.h"),
    (r"\b(?:sprintf|strcpy|strcat|gets|strtok|rand|srand)\s*\(", "is not safe to use"),
)

# No build-time switch may change what a public header says: library and caller would see different types. Whether there
# are exceptions to catch changes no type, only the body of one fence.
HEADER_CONDITIONALS = re.compile(
    r"^(?:ifndef KVSTRATA_\w+_H|ifdef __cplusplus|ifndef KVSTRATA_API|"
    r"if defined\((?:__GNUC__|__cpp_exceptions)\)|else|endif)$")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_text(path, text):
    """Bytes on the line, whatever the language."""
    if "\r" in text:
        yield f"{path}: carriage returns"
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"
    if text.endswith("\n\n"):
        yield f"{path}: empty lines at the end"
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COLUMNS and not path.endswith((".md", ".json", ".txt")):
            yield f"{path}:{number}: {len(line)} columns, {COLUMNS} are allowed"
        if "\t" in line and not path.endswith("Makefile"):
            yield f"{path}:{number}: tab"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end"
        if UNFINISHED.search(line) and path != "tests/tidy/style.py":
            yield f"{path}:{number}: unfinished mark without an issue, write TODO(#12) or finish it"


def check_license(path, text):
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:2]):
        yield f"{path}: the first lines do not name the licence (SPDX-License-Identifier)"


def check_library(path, text):
    code = source_tree.code_only(text)
    for pattern, why in FORBIDDEN:
        for match in re.finditer(pattern, code):
            yield f"{path}:{line_of(code, match.start())}: {match.group(0).rstrip('( ')} {why}"


def check_internal_header(path, text):
    # Highway reads a "-inl.h" header again for each of its targets.
    if "#pragma once" not in text and not path.endswith("-inl.h"):
        yield f"{path}: no #pragma once"


def check_public_header(path, text):
    code = source_tree.code_only(text, keep_strings=True)
    for match in re.finditer(r"^[ \t]*#[ \t]*((?:if|ifdef|ifndef|elif|else|endif)\b.*)$", code, re.MULTILINE):
        directive = " ".join(match.group(1).split())
        if not HEADER_CONDITIONALS.match(directive):
            yield f"{path}:{line_of(code, match.start())}: #{directive} in a public header"
    if path.endswith(".hpp"):
        return
    if not re.search(r"#ifndef (KVSTRATA_\w+_H)\n#define \1\n", text):
        yield f"{path}: no include guard"
    for line, statement in statements(code):
        prototype = re.match(r"(?!typedef\b)[\w\s*]+\b(kvstrata_\w+)\s*\(", statement)
        if prototype and not statement.startswith("KVSTRATA_API "):
            yield f"{path}:{line}: {prototype.group(1)} is declared without KVSTRATA_API"
        if statement.startswith("KVSTRATA_API ") and 'extern "C"' not in text:
            yield f'{path}:{line}: a function outside extern "C"'
        if prototype and re.search(r"\b(?:enum|bool|_Bool|__int128|long)\b", statement):
            yield f"{path}:{line}: {prototype.group(1)} has a type whose width is the compiler's choice"


def statements(code):
    """(line, text) of each statement at the outermost level; what stands in braces is dropped, extern "C"'s are not."""
    code = re.sub(r"^[ \t]*#.*(?:\\\n.*)*$", "", code, flags=re.MULTILINE)
    code = code.replace('extern "C" {', "")
    depth, begin, kept = 0, None, []
    for position, char in enumerate(code):
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
        elif depth <= 0:
            if char == ";":
                if begin is not None:
                    yield line_of(code, begin), " ".join("".join(kept).split())
                begin, kept = None, []
            else:
                if begin is None and not char.isspace():
                    begin = position
                kept.append(char)


def check_dead_files(root, paths):
    """A source that no CMakeLists.txt names, and an internal header that nobody includes, is dead."""
    named = set()
    for path in paths:
        if os.path.basename(path) == "CMakeLists.txt":
            folder = os.path.dirname(path)
            text = re.sub(r"#.*", "", source_tree.read(root, path))
            for word in re.findall(r"[\w./+-]+\.(?:cc|c|cu)\b", text):
                named.add(os.path.normpath(os.path.join(folder, word)))
                named.add(os.path.normpath(word))
    included = set()
    for path in paths:
        if path.endswith(source_tree.C_SUFFIXES):
            code = source_tree.code_only(source_tree.read(root, path), keep_strings=True)
            for name in re.findall(r'#\s*include\s*[<"]([^>"]+)[>"]', code):
                included.add(os.path.normpath(name))
                included.add(os.path.normpath(os.path.join(os.path.dirname(path), name)))
    for path in paths:
        if path.endswith((".c", ".cc", ".cu")) and path not in named:
            yield f"{path}: no CMakeLists.txt names this file"
        if path.endswith((".h", ".hpp", ".cuh")) and not path.startswith("include/") and path not in included:
            yield f"{path}: nobody includes this file"


def check(root):
    paths = source_tree.files(root)
    problems = []
    for path in paths:
        if not path.endswith(TEXT_SUFFIXES):
            continue
        text = source_tree.read(root, path)
        problems += check_text(path, text)
        if path.endswith(LICENSED_SUFFIXES):
            problems += check_license(path, text)
        if path.startswith(LIBRARY) and path.endswith(source_tree.C_SUFFIXES):
            problems += check_library(path, text)
        if path.startswith("include/"):
            problems += check_public_header(path, text)
        if path.endswith((".h", ".hpp", ".cuh")) and not re.match(r"include/.*\.h$", path):
            problems += check_internal_header(path, text)
    problems += check_dead_files(root, paths)
    return problems


SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
GUARD = "#ifndef KVSTRATA_A_H\n#define KVSTRATA_A_H\n"
OPEN = SPDX + GUARD + '#ifdef __cplusplus\nextern "C" {\n#endif\n'
CLOSE = "#ifdef __cplusplus\n}\n#endif\n#endif\n"
# (file, its text, what must be reported; "" = nothing)
PLANTED = (
    ("lib/a.cc", SPDX + "int x;\n", ""),
    ("lib/a.cc", SPDX + '// printf(); abort(); throw\nconst char* t = "printf(";\nvoid exit_now();\n', ""),
    ("lib/a.cc", SPDX + "int n = 1'000; char c = '\"'; int m; // don't\nint k = snprintf(b, 1, \"x\");\n", ""),
    ("lib/a.cc", "int x;\n", "licence"),
    ("lib/a.cc", SPDX + "int x;", "no newline"),
    ("lib/a.cc", SPDX + "int x; \n", "blanks"),
    ("lib/a.cc", SPDX + "\tint x;\n", "tab"),
    ("lib/a.cc", SPDX + "// " + "x" * 118 + "\n", "121 columns"),
    ("lib/a.cc", SPDX + "// TODO: more\n", "unfinished"),
    ("lib/a.cc", SPDX + "// TODO(#12): more\n", ""),
    ("lib/a.cc", SPDX + "void f() { std::printf(\"x\"); }\n", "prints"),
    ("lib/a.cc", SPDX + "void f() { std::cerr << 1; }\n", "prints"),
    ("capi/a.cc", SPDX + "void f() { std::abort(); }\n", "ends the process"),
    ("capi/a.cc", SPDX + "void f() { throw 1; }\n", "throws"),
    ("kernels/a.cc", SPDX + "void f() { exit(1); }\n", "ends the process"),
    ("lib/a.cc", SPDX + "void f() { umask(0); }\n", "whole process"),
    ("lib/a.cc", SPDX + "void f() { options.signal(1); signal(user); }\n", ""),
    ("lib/a.cc", SPDX + "void f() { signal(SIGPIPE, SIG_IGN); }\n", "whole process"),
    ("lib/a.h", SPDX + "int x;\n", "pragma once"),
    ("lib/user-inl.h", SPDX + "int x;\n", "nobody includes"),
    ("include/kvstrata/a.h", SPDX + GUARD + "#endif\n", ""),
    ("include/kvstrata/a.h", SPDX + "#define KVSTRATA_A_H\n", "include guard"),
    ("include/kvstrata/a.h", SPDX + GUARD + "#ifdef KVSTRATA_CUDA\n#endif\n#endif\n", "in a public header"),
    ("include/kvstrata/a.h", SPDX + GUARD + "int kvstrata_f(void);\n#endif\n", "without KVSTRATA_API"),
    ("include/kvstrata/a.h", SPDX + GUARD + "KVSTRATA_API int kvstrata_f(void);\n#endif\n", 'extern "C"'),
    ("include/kvstrata/a.h", OPEN + "typedef int (*kvstrata_fn)(long);\nenum { KVSTRATA_X = 1 };\n"
     "KVSTRATA_API int32_t kvstrata_f(\n    int32_t);\n" + CLOSE, ""),
    ("include/kvstrata/a.h", OPEN + "KVSTRATA_API int32_t kvstrata_f(long);\n" + CLOSE, "compiler's choice"),
    ("lib/dead.cc", SPDX + "int x;\n", "no CMakeLists.txt names"),
    ("lib/dead.h", SPDX + "#pragma once\nint x;\n", "nobody includes"),
)


def self_test():
    problems = []
    for path, text, expected in PLANTED:
        with tempfile.TemporaryDirectory() as root:
            for folder in ("lib", "capi", "kernels", "include/kvstrata"):
                os.makedirs(os.path.join(root, folder))
            write(root, "CMakeLists.txt", "add_library(x lib/a.cc capi/a.cc kernels/a.cc lib/user.cc)\n")
            write(root, "lib/user.cc", SPDX + '#include "lib/a.h"\n')
            write(root, path, text)
            found = check(root)
        if expected == "" and found or expected != "" and (len(found) != 1 or expected not in found[0]):
            problems.append(f"planted {path} {text!r}: expected {expected!r}, got {found}")
    return problems


def write(root, path, text):
    with open(os.path.join(root, path), "w", encoding="utf-8", newline="") as stream:
        stream.write(text)


if __name__ == "__main__":
    if sys.argv[2:] == ["--self-test"]:
        sys.exit(source_tree.report(self_test(), "style, self-test"))
    sys.exit(source_tree.report(check(sys.argv[1]), "style"))
