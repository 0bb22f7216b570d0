# SPDX-License-Identifier: Apache-2.0
"""Cache, Namespace, Match and Pin.

Thread rule: cache, namespace and pin from any thread; a match from one thread at a time.

I1. Pinned rows stay as long as anything looks at them: a view of a range keeps the C pin, also after the Pin's release.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import itertools
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _abi, storage as storages
from ._library import ExtraKey, Handle, call, get, get_number, make, sized, tokens_struct
from .layout import Layout

if TYPE_CHECKING:
    from .plan import Plan
    from .writer import Writer

Progress = Callable[[int, int], Optional[bool]]

_progress: Dict[int, Progress] = {}
_numbers = itertools.count(1)


@_abi.kvstrata_progress_fn
def _on_progress(user: int, done: int, total: int) -> int:
    try:
        return int(_progress[user](done, total) is False)
    except BaseException:  # noqa: B902 - nothing may leave a callback
        return 1


# A library thread that called Python after the interpreter's end would crash: caches are closed before it.
_open_caches: "weakref.WeakSet[Cache]" = weakref.WeakSet()


@atexit.register
def _release_all() -> None:
    for cache in list(_open_caches):
        cache.release()


class Cache(Handle):
    """One store. capacity_bytes is required unless read_only; `path` None and no storage: in memory only."""

    _destroy = "kvstrata_cache_destroy"

    def __init__(self, path: Optional[Union[str, os.PathLike]] = None, *, capacity_bytes: int = 0,
                 storage: Optional[storages.Storage] = None, read_only: bool = False, **options: int) -> None:
        """`options`: the other numbers of kvstrata_cache_options (snapshot_bytes, staging_bytes, lease_ms, ...)."""
        c = sized(_abi.kvstrata_cache_options)
        for name, value in options.items():
            if name not in dict(c._fields_):
                raise TypeError(f"Cache has no option {name}")
            setattr(c, name, value)
        c.flags |= _abi.KVSTRATA_CACHE_READ_ONLY if read_only else 0
        c.path = os.fsencode(path) if path is not None else None
        c.capacity_bytes = capacity_bytes
        table = storages.table_of(storage) if storage is not None else None
        if table is not None:
            c.storage = ctypes.pointer(table)
        try:
            super().__init__(make("kvstrata_cache_open", ctypes.byref(c)))
        except BaseException:
            if table is not None:
                storages.forget(table)
            raise
        _open_caches.add(self)

    def close(self, timeout_ms: int = 0) -> _abi.kvstrata_close_info:
        """Drains accepted writes; handles made from the cache answer KVSTRATA_E_INVALID_STATE afterwards."""
        return get("kvstrata_cache_close", _abi.kvstrata_close_info, self.pointer, timeout_ms)

    def namespace(self, layout: Layout, identity: Mapping[str, Union[str, bytes]], *, must_exist: bool = False,
                  snapshot_policy: int = 0, snapshot_every_tokens: int = 0, compress: int = 0,
                  pack: int = 0) -> "Namespace":
        """Opens the namespace of this identity and layout, or makes it. Text is taken as UTF-8. `compress` and `pack`:
        KVSTRATA_COMPRESS_* and KVSTRATA_PACK_* bits."""
        options = sized(_abi.kvstrata_namespace_options)
        options.flags = _abi.KVSTRATA_NAMESPACE_MUST_EXIST if must_exist else 0
        options.layout = layout.pointer
        options.snapshot_policy, options.snapshot_every_tokens = snapshot_policy, snapshot_every_tokens
        options.compress, options.pack = compress, pack
        values = [(name, value.encode() if isinstance(value, str) else bytes(value))
                  for name, value in identity.items()]
        fields = (_abi.kvstrata_identity_field * len(values))()
        for field, (name, value) in zip(fields, values):
            field.struct_size = ctypes.sizeof(field)
            field.name, field.size = name.encode(), len(value)
            field.bytes = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p)
        options.fields, options.field_count = fields, len(values)
        return Namespace(make("kvstrata_namespace_open", self.pointer, ctypes.byref(options)))

    @property
    def stats(self) -> _abi.kvstrata_stats:
        return get("kvstrata_cache_stats", _abi.kvstrata_stats, self.pointer)

    def events(self, from_sequence: int, at_most: int = 1024) -> Tuple[List[_abi.kvstrata_event], int]:
        """The events from `from_sequence` on that are still held, and the sequence to ask for next."""
        array = (_abi.kvstrata_event * at_most)()
        for event in array:
            event.struct_size = ctypes.sizeof(event)
        count, following = ctypes.c_uint64(), ctypes.c_uint64()
        call("kvstrata_cache_events", self.pointer, from_sequence, array, at_most, ctypes.sizeof(_abi.kvstrata_event),
             ctypes.byref(count), ctypes.byref(following))
        return list(array[:count.value]), following.value

    def verify(self, progress: Optional[Progress] = None) -> _abi.kvstrata_verify_info:
        """Reads and checks every record. `progress(done, total)` returns False, or raises, to end it."""
        number = next(_numbers)
        if progress is None:
            return get("kvstrata_cache_verify", _abi.kvstrata_verify_info, self.pointer, _abi.kvstrata_progress_fn(),
                       None)
        _progress[number] = progress
        try:
            return get("kvstrata_cache_verify", _abi.kvstrata_verify_info, self.pointer, _on_progress, number)
        finally:
            del _progress[number]

    def trim(self, target_bytes: int) -> int:
        """Evicts until at most target_bytes are held or only leased records are left; gives the bytes held."""
        return get_number("kvstrata_cache_trim", self.pointer, target_bytes)

    def sync(self) -> None:
        call("kvstrata_cache_sync", self.pointer)

    def purge_foreign(self) -> int:
        return get_number("kvstrata_cache_purge_foreign", self.pointer)


class Namespace(Handle):
    """Identity and layout inside a cache: the wall between models and tenants."""

    _destroy = "kvstrata_namespace_destroy"

    def lookup(self, tokens: Union[Sequence[int], Any], *, extra_keys: Iterable[ExtraKey] = (), flags: int = 0,
               held_tokens: int = 0, allowed_modes: int = 0, restart_multiple: int = 0, min_gain_tokens: int = 0,
               prefill_tokens_per_second: float = 0, storage_bytes_per_second: float = 0, lease_ms: int = 0) -> "Match":
        """Longest stored prefix; always a match, also for a miss. Pure memory, no I/O."""
        c_tokens, keep = tokens_struct(tokens, extra_keys)
        options = sized(_abi.kvstrata_lookup_options)
        options.flags, options.held_tokens, options.allowed_modes = flags, held_tokens, allowed_modes
        options.restart_multiple, options.min_gain_tokens = restart_multiple, min_gain_tokens
        options.lease_ms = lease_ms
        options.prefill_tokens_per_second = prefill_tokens_per_second
        options.storage_bytes_per_second = storage_bytes_per_second
        out = make("kvstrata_lookup", self.pointer, ctypes.byref(c_tokens), ctypes.byref(options))
        del keep
        return Match(out)

    def writer(self, match: Optional["Match"] = None, **options: Any) -> "Writer":
        from .writer import Writer
        return Writer(self, match, **options)

    @property
    def info(self) -> _abi.kvstrata_namespace_info:
        return get("kvstrata_namespace_get_info", _abi.kvstrata_namespace_info, self.pointer)

    def drop(self) -> None:
        """Forgets everything stored here, durably."""
        call("kvstrata_namespace_drop", self.pointer)


class Match(Handle):
    """One lookup's result and the lease on what it promises; releasing it ends the lease."""

    _destroy = "kvstrata_match_destroy"

    @property
    def info(self) -> _abi.kvstrata_match_info:
        return get("kvstrata_match_get_info", _abi.kvstrata_match_info, self.pointer)

    def renew(self, lease_ms: int = 0) -> None:
        call("kvstrata_match_renew", self.pointer, lease_ms)

    def limit(self, max_usable_tokens: int) -> None:
        call("kvstrata_match_limit", self.pointer, max_usable_tokens)

    def first_difference(self) -> Optional[int]:
        """Position of the first token that differs from the nearest stored continuation. Reads storage."""
        position = get_number("kvstrata_match_first_difference", self.pointer)
        return None if position == 2**64 - 1 else position

    def pin(self) -> "Pin":
        """The rows of the leading blocks of what a plan would read, as far as they are in memory: no I/O, no copy."""
        return Pin(_PinnedRows(make("kvstrata_match_pin", self.pointer)))

    def plan(self, **options: Any) -> "Plan":
        from .plan import Plan
        return Plan(self, **options)

    @staticmethod
    def agree(matches: Sequence["Match"]) -> int:
        """Limits the matches of one prompt, one per rank, to the largest length that all of them reach."""
        raw = (ctypes.c_void_p * len(matches))(*(match.pointer for match in matches))
        return get_number("kvstrata_match_agree", raw, len(matches))


@dataclasses.dataclass(frozen=True)
class PinRange:
    """Consecutive rows of one stream where they lie; rows 0: optional, and these blocks were stored without it.

    `data` is a read-only view of bytes, for numpy.frombuffer too. The rows stay as long as it, or a part of it, does.
    """

    stream: int
    first_row: int
    rows: int
    data: memoryview


class _PinnedRows(Handle):
    """The C pin: of the Pin, and of each view that was made of its rows."""

    _destroy = "kvstrata_pin_destroy"


class Pin:
    """A match's rows in memory, valid and unchanged whatever becomes of match and cache.

    Released by release, at the end of a `with` block, or with the last reference; the memory then goes with the last
    view of it.
    """

    def __init__(self, rows: _PinnedRows) -> None:
        self._rows: Optional[_PinnedRows] = rows

    @property
    def pointer(self) -> Optional[int]:
        """For calls of the C API; stays owned by this object."""
        rows = self._rows
        return rows.pointer if rows is not None else None

    @property
    def info(self) -> _abi.kvstrata_pin_info:
        return get("kvstrata_pin_get_info", _abi.kvstrata_pin_info, self.pointer)

    def range(self, index: int) -> PinRange:
        """Range `index` of info's range_count, in the order of the blocks, and for the same blocks by layer."""
        rows = self._rows  # kept through the call, whoever releases meanwhile
        pointer = rows.pointer if rows is not None else None
        found = get("kvstrata_pin_get_range", _abi.kvstrata_pin_range, pointer, index)
        if not found.data:
            return PinRange(found.stream, found.first_row, found.rows, memoryview(b""))
        memory = (ctypes.c_char * found.bytes).from_address(found.data)
        memory.rows = rows  # a view keeps the array, and with it the C pin
        return PinRange(found.stream, found.first_row, found.rows, memoryview(memory).cast("B").toreadonly())

    def ranges(self) -> List[PinRange]:
        return [self.range(index) for index in range(self.info.range_count)]

    def release(self) -> None:
        self._rows = None

    def __enter__(self) -> "Pin":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.release()
