# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the shared library, turns statuses into exceptions, owns handles, pins memory.

Thread rule: as the C handles (c_api.h, section 1). A call into the library lets other Python threads run.
"""

from __future__ import annotations

import array
import ctypes
import os
import weakref
from typing import Any, Callable, Iterable, Optional, Tuple, Type, TypeVar, Union

from . import _abi

S = TypeVar("S", bound=ctypes.Structure)
H = TypeVar("H", bound="Handle")


def _load() -> ctypes.CDLL:
    """KVSTRATA_LIBRARY names the file; else the loader looks for the SONAME of the ABI that this package is for."""
    library = ctypes.CDLL(os.environ.get("KVSTRATA_LIBRARY") or f"libkvstrata.so.{_abi.KVSTRATA_ABI_VERSION}")
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    if library.kvstrata_abi_version() != _abi.KVSTRATA_ABI_VERSION:
        raise ImportError(f"libkvstrata has ABI {library.kvstrata_abi_version()}, this package was made for "
                          f"{_abi.KVSTRATA_ABI_VERSION}")
    return library


lib = _load()


class Error(Exception):
    """A status that is not KVSTRATA_OK: its number, the number behind it, the field at fault and one sentence."""

    def __init__(self, code: int, field: str = "", message: str = "", native_code: int = 0) -> None:
        super().__init__(f"{status_name(code)}: {field + ': ' if field else ''}{message}")
        self.code = code
        self.field = field
        self.message = message
        self.native_code = native_code


def status_name(code: int) -> str:
    return lib.kvstrata_status_name(code).decode()


def abi_version() -> int:
    return lib.kvstrata_abi_version()


def format_version() -> int:
    return lib.kvstrata_format_version()


def version_string() -> str:
    return lib.kvstrata_version_string().decode()


def sized(kind: Type[S]) -> S:
    """All zero with its size set: every member's default."""
    value = kind()
    value.struct_size = ctypes.sizeof(kind)
    return value


def call(name: str, *arguments: Any) -> None:
    """Calls a fallible function, whose last parameter is the error, and raises what it reports."""
    error = sized(_abi.kvstrata_error)
    status = getattr(lib, name)(*arguments, ctypes.byref(error))
    if status != _abi.KVSTRATA_OK:
        raise Error(status, error.field.decode(errors="replace"), error.message.decode(errors="replace"),
                    error.native_code)


def get(name: str, kind: Type[S], *arguments: Any) -> S:
    """Calls a function whose output is one struct."""
    out = sized(kind)
    call(name, *arguments, ctypes.byref(out))
    return out


def get_number(name: str, *arguments: Any) -> int:
    out = ctypes.c_uint64()
    call(name, *arguments, ctypes.byref(out))
    return out.value


class Handle:
    """Owns one C handle and destroys it once: by release, at the end of a `with` block, or with the last reference.

    A released handle is NULL, and the library answers calls on it with KVSTRATA_E_INVALID_ARGUMENT.
    """

    _destroy = ""

    def __init__(self, pointer: Optional[int], afterwards: Optional[Callable[[], None]] = None) -> None:
        """`afterwards` is called when the C handle is gone; it must not refer to this object."""
        self._pointer = pointer
        self._finalizer = weakref.finalize(self, _destroy, getattr(lib, self._destroy), pointer, afterwards)

    @property
    def pointer(self) -> Optional[int]:
        """For calls of the C API; stays owned by this object."""
        return self._pointer

    def release(self) -> None:
        self._pointer = None
        self._finalizer()

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.release()


def _destroy(function: Any, pointer: Optional[int], afterwards: Optional[Callable[[], None]]) -> None:
    function(pointer)
    if afterwards is not None:
        afterwards()


def make(name: str, *arguments: Any) -> Optional[int]:
    """Calls a function whose output is a handle."""
    out = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(out))
    return out.value


class _PyBuffer(ctypes.Structure):
    """Py_buffer, part of Python's stable ABI."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None
PyBUF_SIMPLE, PyBUF_WRITABLE = 0, 1


class Pinned:
    """The memory of an object with the buffer protocol, held in place while this object lives."""

    def __init__(self, memory: Any, writable: bool) -> None:
        view = _PyBuffer()
        _get_buffer(memory, ctypes.byref(view), PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.address = view.buf
        self.size = view.len
        weakref.finalize(self, _release_buffer, ctypes.byref(view))


ExtraKey = Tuple[int, int, bytes]  # position, type, bytes


def tokens_struct(ids: Union[Iterable[int], Any], extra_keys: Iterable[ExtraKey]) -> Tuple[Any, list]:
    """(kvstrata_tokens, what must outlive the call). A contiguous buffer of int32 is used in place, else copied."""
    out = sized(_abi.kvstrata_tokens)
    try:
        view = memoryview(ids)
        in_place = view.itemsize == 4 and view.format in ("i", "l", "<i", "=i") and view.c_contiguous
    except TypeError:
        in_place = False
    pinned = Pinned(ids if in_place else array.array("i", ids), writable=False)
    out.ids = ctypes.cast(pinned.address or 0, ctypes.POINTER(ctypes.c_int32))
    out.count = pinned.size // 4
    keys = list(extra_keys)
    c_keys = (_abi.kvstrata_extra_key * len(keys))()
    for c_key, (position, kind, data) in zip(c_keys, keys):
        c_key.struct_size = ctypes.sizeof(c_key)
        c_key.type, c_key.position, c_key.size = kind, position, len(data)
        c_key.bytes = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)
    if keys:
        out.extra_keys = c_keys
        out.extra_key_count = len(keys)
    return out, [pinned, c_keys, keys]
