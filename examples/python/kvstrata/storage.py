# SPDX-License-Identifier: Apache-2.0
"""A cache's storage as a Python class.

Thread rule: the library calls a storage from any of its threads, several at once.

I1. The C functions handed to the library belong to this module and are never freed: a call of the library can not find
    a function gone. What they act on is looked up by number; after destroy the number is unknown.
I2. No exception leaves a callback: Error becomes its code, anything else KVSTRATA_E_CALLBACK.
I3. A request completes once, and its views are released then: what they show is the library's again.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi
from ._library import Error, sized

MAX_META = 4096


class Entry(NamedTuple):
    """What `Storage.list` gives of a record. stored_bytes is what it costs of the budget."""

    key: bytes
    payload_bytes: int
    stored_bytes: int
    meta: bytes


def _view(address: Optional[int], size: int) -> memoryview:
    if not address or not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class Request:
    """One put or ranged get. Its views show the library's memory and end with `complete`."""

    def __init__(self, raw: _abi.kvstrata_storage_request) -> None:
        self.is_put = raw.kind == _abi.KVSTRATA_STORAGE_PUT
        self.key = bytes(raw.key.bytes)
        self.offset = raw.offset
        self.meta = ctypes.string_at(raw.meta, raw.meta_size) if raw.meta_size else b""
        self.destination = _view(raw.destination, 0 if self.is_put else raw.size)
        parts = raw.parts if self.is_put else ()
        self.parts = [_view(parts[i].data, parts[i].size) for i in range(raw.part_count if self.is_put else 0)]
        self.size = sum(len(part) for part in self.parts) if self.is_put else raw.size
        self._complete, self._user = raw.complete, raw.user
        self._lock = threading.Lock()
        self.completed = False

    def _finish(self) -> bool:
        """True for the first caller. The views are gone afterwards."""
        with self._lock:
            first, self.completed = not self.completed, True
        if first:
            for view in [self.destination, *self.parts]:
                try:
                    view.release()
                except BufferError:  # somebody keeps a view of this view: it is theirs to drop
                    pass
        return first

    def complete(self, status: int = _abi.KVSTRATA_OK, native_code: int = 0) -> None:
        """Exactly once; a second time raises Error."""
        if not self._finish():
            raise Error(_abi.KVSTRATA_E_INVALID_STATE, "request", "it has been completed before")
        self._complete(self._user, status, self.size if status == _abi.KVSTRATA_OK else 0, native_code)

    def run(self, storage: "Storage") -> None:
        """Does what it asks for with the storage's put or get, and completes it."""
        status = native_code = 0
        try:
            if self.is_put:
                storage.put(self.key, self.parts, self.meta)
            else:
                storage.get(self.key, self.offset, self.destination)
        except Exception as problem:
            status, native_code = _status_of(problem)
        self.complete(status, native_code)


class Storage:
    """Base of storages. Give put, get, stat, remove, list; or submit instead of put and get, to complete later.

    To report a failure raise Error(KVSTRATA_E_...); any other exception is KVSTRATA_E_CALLBACK.
    """

    capabilities = 0  # KVSTRATA_STORAGE_DURABLE_SYNC | KVSTRATA_STORAGE_PERSISTENT

    def put(self, key: bytes, parts: Sequence[memoryview], meta: bytes) -> None:
        """Replaces the record of `key` as a whole. Its payload is the parts, one after the other."""
        raise Error(_abi.KVSTRATA_E_UNSUPPORTED)

    def get(self, key: bytes, offset: int, destination: memoryview) -> None:
        """Fills `destination`. An absent key is KVSTRATA_E_NOT_FOUND, a shorter record KVSTRATA_E_CORRUPT."""
        raise Error(_abi.KVSTRATA_E_UNSUPPORTED)

    def submit(self, requests: List[Request]) -> None:
        """Accepts all, and completes each once, now or later; or raises, and has accepted none."""
        for request in requests:
            request.run(self)

    def stat(self, key: bytes) -> Optional[int]:
        """Payload bytes of the record, None when it is absent."""
        raise Error(_abi.KVSTRATA_E_UNSUPPORTED)

    def remove(self, key: bytes) -> None:
        """An absent key is no failure."""
        raise Error(_abi.KVSTRATA_E_UNSUPPORTED)

    def sync(self) -> None:
        """Makes earlier puts durable; needs KVSTRATA_STORAGE_DURABLE_SYNC."""
        raise Error(_abi.KVSTRATA_E_UNSUPPORTED)

    def list(self, cursor: int, capacity: int) -> Tuple[Sequence[Entry], int]:
        """At most `capacity` entries from `cursor` (0 at first) on, and the next cursor (0 = the end)."""
        raise Error(_abi.KVSTRATA_E_UNSUPPORTED)

    def destroyed(self) -> None:
        """The cache has made its last call."""


_alive: Dict[int, Storage] = {}
_numbers = itertools.count(1)


def _status_of(problem: BaseException) -> Tuple[int, int]:
    if isinstance(problem, Error) and problem.code != _abi.KVSTRATA_OK:
        return problem.code, problem.native_code
    return _abi.KVSTRATA_E_CALLBACK, 0


def _fenced(function: Any) -> Any:
    def run(ctx: int, *arguments: Any) -> int:
        try:
            function(_alive[ctx], *arguments)
            return _abi.KVSTRATA_OK
        except BaseException as problem:  # noqa: B902 - nothing may leave a callback
            return _status_of(problem)[0]
    return run


def _submit(storage: Storage, raw: Any, count: int, stride: int) -> None:
    base = ctypes.addressof(raw.contents)
    requests = [Request(_abi.kvstrata_storage_request.from_address(base + i * stride)) for i in range(count)]
    try:
        storage.submit(requests)
    except Exception:
        # None is accepted by raising; but what has been completed was accepted, and so are all then.
        if not any(request.completed for request in requests):
            for request in requests:
                request._finish()
            raise
        for request in requests:
            if not request.completed:
                request.complete(_abi.KVSTRATA_E_CALLBACK)


def _stat(storage: Storage, key: Any, out_exists: Any, out_bytes: Any) -> None:
    size = storage.stat(bytes(key.contents.bytes))
    out_exists[0] = int(size is not None)
    out_bytes[0] = size or 0


def _list(storage: Storage, cursor: Any, entries: Any, capacity: int, stride: int, out_count: Any) -> None:
    found, following = storage.list(cursor[0], capacity)
    if len(found) > capacity or any(len(entry.meta) > MAX_META or len(entry.key) != 32 for entry in found):
        raise Error(_abi.KVSTRATA_E_CALLBACK)
    base = ctypes.addressof(entries.contents) if found else 0
    for index, entry in enumerate(found):
        out = _abi.kvstrata_storage_entry.from_address(base + index * stride)
        out.key.bytes[:] = entry.key
        out.payload_bytes, out.stored_bytes, out.meta_size = entry.payload_bytes, entry.stored_bytes, len(entry.meta)
        ctypes.memmove(out.meta, entry.meta, len(entry.meta))
    cursor[0] = following
    out_count[0] = len(found)


def _destroy(ctx: int) -> None:
    storage = _alive.pop(ctx, None)
    try:
        if storage is not None:
            storage.destroyed()
    except BaseException:  # noqa: B902 - nobody is left to be told
        pass


_types = dict(_abi.kvstrata_storage._fields_)
_functions = {
    "destroy": _types["destroy"](_destroy),
    "submit": _types["submit"](_fenced(_submit)),
    "stat": _types["stat"](_fenced(_stat)),
    "remove": _types["remove"](_fenced(lambda storage, key: storage.remove(bytes(key.contents.bytes)))),
    "sync": _types["sync"](_fenced(lambda storage: storage.sync())),
    "list": _types["list"](_fenced(_list)),
}


def table_of(storage: Storage) -> _abi.kvstrata_storage:
    """A table for one open. The storage is kept until the cache destroys it, or until `forget`."""
    table = sized(_abi.kvstrata_storage)
    table.abi_version = _abi.KVSTRATA_ABI_VERSION
    table.ctx = next(_numbers)
    table.capabilities = storage.capabilities
    for name, function in _functions.items():
        setattr(table, name, function)
    _alive[table.ctx] = storage
    return table


def forget(table: _abi.kvstrata_storage) -> None:
    """The open failed: the storage has stayed the caller's."""
    _alive.pop(table.ctx, None)
