# SPDX-License-Identifier: Apache-2.0
"""Restores, and the buffers that say where an engine's rows live.

Thread rule: poll, wait, wait_layers and cancel from any thread; the rest by one thread at a time.

I1. The memory of a started plan's destinations is pinned until the plan is released: nothing can free or move it before
    the library has promised not to touch it again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _abi
from ._library import Handle, Pinned, call, get, lib, make, sized

if TYPE_CHECKING:
    from .cache import Match

Signal = Callable[[int, int], Optional[bool]]
NO_TIMEOUT = 2**64 - 1


@dataclasses.dataclass(frozen=True)
class Column:
    """`bytes` bytes of every row, at `offset` from the base (of the page), `stride` bytes from row to row."""

    bytes: int
    offset: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Where one stream's rows are, as source and as destination; the members of kvstrata_buffer.

    `memory` is anything contiguous with the buffer protocol, used in place. `page_ids` too: int32 or int64 (array,
    numpy), or a list.
    """

    stream: int
    memory: Any
    form: int = _abi.KVSTRATA_FORM_LINEAR
    first_row: int = 0
    row_stride: int = 0
    capacity_rows: int = 0
    rows_per_page: int = 0
    page_stride: int = 0
    first_page: int = 0
    page_ids: Any = None
    columns: Sequence[Column] = ()

    def _to_c(self, writable: bool) -> Tuple[_abi.kvstrata_buffer, Pinned, list]:
        """(descriptor, the pinned memory, what must outlive the call)."""
        pinned = Pinned(self.memory, writable)
        out = sized(_abi.kvstrata_buffer)
        out.base, out.size_bytes = pinned.address, pinned.size
        for name in ("stream", "form", "first_row", "row_stride", "capacity_rows", "rows_per_page", "page_stride",
                     "first_page"):
            setattr(out, name, getattr(self, name))
        keep: list = []
        if self.page_ids is not None:
            self._set_ids(out, keep)
        if self.columns:
            columns = (_abi.kvstrata_column * len(self.columns))()
            for column, given in zip(columns, self.columns):
                column.struct_size = ctypes.sizeof(column)
                column.bytes, column.offset, column.stride = given.bytes, given.offset, given.stride
            out.columns, out.column_count = columns, len(self.columns)
            keep.append(columns)
        return out, pinned, keep

    def _set_ids(self, out: _abi.kvstrata_buffer, keep: list) -> None:
        ids = self.page_ids
        if isinstance(ids, (list, tuple)):
            ids = (ctypes.c_int64 * len(ids))(*ids)
        view = memoryview(ids)
        pinned = Pinned(ids, writable=False)
        out.page_ids, out.page_count, out.page_id_bytes = pinned.address, view.nbytes // view.itemsize, view.itemsize
        keep.append(pinned)


_signals: Dict[int, Signal] = {}
_numbers = itertools.count(1)


@_abi.kvstrata_plan_signal_fn
def _on_signal(user: int, layers_ready: int, state: int) -> int:
    try:
        signal = _signals.get(user)
        return int(signal is not None and signal(layers_ready, state) is False)
    except BaseException:  # noqa: B902 - nothing may leave a callback
        return 1


class Plan(Handle):
    """One restore: start, then wait, then run the tokens from replay_from on.

    `signal(layers_ready, state)` may only signal; it returns False, or raises, to cancel. Releasing a running plan
    cancels it.
    """

    _destroy = "kvstrata_plan_destroy"

    def __init__(self, match: "Match", *, flags: int = 0, streams: Sequence[int] = (), timeout_ms: int = 0,
                 signal: Optional[Signal] = None) -> None:
        options = sized(_abi.kvstrata_plan_options)
        options.flags, options.timeout_ms = flags, timeout_ms
        number = next(_numbers)
        if streams:
            options.streams, options.stream_count = (ctypes.c_uint32 * len(streams))(*streams), len(streams)
        if signal is not None:
            _signals[number] = signal
            options.signal, options.signal_user = _on_signal, number
        pinned: List[Pinned] = []
        forget = functools.partial(_forget, number, pinned)
        try:
            pointer = make("kvstrata_plan_create", match.pointer, ctypes.byref(options))
        except BaseException:
            forget()
            raise
        super().__init__(pointer, forget)
        self._pinned = pinned

    def segments(self) -> List[_abi.kvstrata_plan_segment]:
        """What will be read, one entry per stream that is not empty, in order of arrival."""
        count = lib.kvstrata_plan_segment_count(self.pointer)
        return [get("kvstrata_plan_get_segment", _abi.kvstrata_plan_segment, self.pointer, i) for i in range(count)]

    def start(self, destinations: Sequence[Buffer]) -> None:
        """Checks every destination, then begins. From here on their memory is the plan's, until it is released."""
        made = [buffer._to_c(writable=True) for buffer in destinations]
        array = (_abi.kvstrata_buffer * len(made))(*(c for c, _, _ in made))
        self._pinned += [pinned for _, pinned, _ in made]
        call("kvstrata_plan_start", self.pointer, array, len(made), ctypes.sizeof(_abi.kvstrata_buffer))

    def poll(self) -> _abi.kvstrata_plan_result:
        return get("kvstrata_plan_poll", _abi.kvstrata_plan_result, self.pointer)

    def wait_layers(self, layers: int, timeout_ms: int = NO_TIMEOUT) -> _abi.kvstrata_plan_result:
        """Until the leading `layers` layers are ready or the plan has ended; a timeout leaves it running."""
        return self._wait("kvstrata_plan_wait_layers", layers, timeout_ms)

    def wait(self, timeout_ms: int = NO_TIMEOUT) -> _abi.kvstrata_plan_result:
        """Until the end and quiescence."""
        return self._wait("kvstrata_plan_wait", timeout_ms)

    def _wait(self, name: str, *arguments: int) -> _abi.kvstrata_plan_result:
        return get(name, _abi.kvstrata_plan_result, self.pointer, *arguments)

    def cancel(self) -> None:
        """When it has returned, the destinations are never touched again."""
        lib.kvstrata_plan_cancel(self.pointer)


def _forget(number: int, pinned: List[Pinned]) -> None:
    """The plan is gone: nobody signals any more, and the memory is free to move."""
    _signals.pop(number, None)
    pinned.clear()
