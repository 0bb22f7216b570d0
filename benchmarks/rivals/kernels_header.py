# SPDX-License-Identifier: Apache-2.0
"""The kernels of a shared libkvstrata as Python functions. Owns: the reading of include/kvstrata/kernels.h.

Argument structs and the table of functions are made from the header's text, so they cannot fall behind it. The header
has one member to a statement, fixed-width types only, and no bit fields.
"""

import ctypes
import re

SCALARS = {"uint8_t": ctypes.c_uint8, "uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32,
           "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


class Kernels:
    """One level. k.index_scores(heads=64, ...) fills the argument struct and a workspace; what it returns calls."""

    def __init__(self, library, header, level):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
        self.constants = {name: int(value) for name, value in re.findall(r"\bKVSTRATA_KERNELS_(\w+) = (\d+)", text)}
        self.structs = {}
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\}\s*(\w+);", text, flags=re.DOTALL):
            if name != "kvstrata_kernels":
                self.structs[name] = self._struct(name, body)
        table = re.search(r"typedef struct kvstrata_kernels \{(.*?)\} kvstrata_kernels;", text, re.DOTALL).group(1)
        get = ctypes.CDLL(str(library)).kvstrata_kernels_get
        get.restype = ctypes.c_void_p
        address = get(self.constants["LEVEL_" + level])
        if not address:
            raise SystemExit(f"this machine has no kernels of level {level}")
        # struct_size and level share the first eight bytes, the name's pointer has the next.
        self.name = ctypes.string_at(ctypes.c_void_p.from_address(address + 8).value).decode()
        for index, (name, argument) in enumerate(re.findall(r"\(\*(\w+)\)\((?:const )?(\w+)\*", table)):
            pointer = ctypes.c_void_p.from_address(address + 16 + 8 * index).value
            setattr(self, name, self._function(name, self.structs[argument], pointer))

    def _struct(self, name, body):
        fields = []
        for statement in filter(None, (" ".join(part.split()) for part in body.split(";"))):
            kind, member = re.fullmatch(r"(?:const )?(\w+)(?: |(?=\*))(.*)", statement).groups()
            if member.startswith("*"):
                fields.append((member.lstrip("* "), ctypes.c_void_p))
            else:
                fields.append((member, SCALARS[kind] if kind in SCALARS else self.structs[kind]))
        return type(name, (ctypes.Structure,), {"_fields_": fields})

    def _function(self, name, struct, pointer):
        call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(pointer)

        def prepare(**members):
            """The call as a function without arguments, for timing; it keeps what it points to."""
            arguments = struct(struct_size=ctypes.sizeof(struct))
            for member, value in members.items():
                self._set(arguments, member, value)
            bytes_of = getattr(self, name + "_workspace_bytes", None)
            workspace = None
            if bytes_of is not None:
                needed = ctypes.c_uint64()
                check(name + "_workspace_bytes", bytes_of(ctypes.addressof(arguments), ctypes.addressof(needed)))
                workspace = ctypes.create_string_buffer(max(8, needed.value))
                arguments.workspace = ctypes.addressof(workspace)
                arguments.workspace_bytes = len(workspace)

            def run(keep=(members, workspace)):
                check(name, call(ctypes.addressof(arguments), None))

            return run

        return call if name.endswith("_workspace_bytes") else prepare

    @staticmethod
    def _set(arguments, member, value):
        if isinstance(value, dict):
            for inner, pointee in value.items():
                Kernels._set(getattr(arguments, member), inner, pointee)
        else:
            setattr(arguments, member, value.data_ptr() if hasattr(value, "data_ptr") else value)


def check(name, status):
    if status != 0:
        raise SystemExit(f"{name} gave status {status}")
