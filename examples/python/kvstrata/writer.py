# SPDX-License-Identifier: Apache-2.0
"""Stores one growing sequence. Thread rule: one thread at a time."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Dict, Iterable, List, Optional, Sequence

from . import _abi
from ._library import ExtraKey, Handle, Pinned, call, get, lib, make, sized, tokens_struct
from .plan import Buffer, Plan

if TYPE_CHECKING:
    from .cache import Match, Namespace


class Writer(Handle):
    """Reads rows from the registered sources when blocks complete, and stores them in the background.

    I1. The memory of a registered source is pinned until it is replaced or the writer is released.
    """

    _destroy = "kvstrata_writer_destroy"

    def __init__(self, namespace: "Namespace", match: Optional["Match"] = None, *, plan: Optional[Plan] = None,
                 flags: int = 0, restart_multiple: int = 0, start_tokens: int = 0, wait_ms: int = 0,
                 priority: int = 0, ttl_seconds: int = 0, _fork_of: Optional["Writer"] = None) -> None:
        self._sources: Dict[int, Pinned] = {}
        if _fork_of is not None:
            super().__init__(make("kvstrata_writer_fork", _fork_of.pointer))
            self._sources.update(_fork_of._sources)
            return
        options = sized(_abi.kvstrata_writer_options)
        options.flags, options.restart_multiple = flags, restart_multiple
        options.start_tokens, options.wait_ms = start_tokens, wait_ms
        options.priority, options.ttl_seconds = priority, ttl_seconds
        options.plan = plan.pointer if plan is not None else None
        match_pointer = match.pointer if match is not None else None
        super().__init__(make("kvstrata_writer_open", namespace.pointer, match_pointer, ctypes.byref(options)))

    def set_source(self, source: Buffer) -> None:
        """Says where a stream's rows are; again to replace it."""
        c, pinned, keep = source._to_c(writable=False)
        call("kvstrata_writer_set_source", self.pointer, ctypes.byref(c))
        del keep
        self._sources[source.stream] = pinned

    def advance(self, tokens: Optional[Sequence[int]], computed_length: int, *,
                extra_keys: Iterable[ExtraKey] = ()) -> None:
        """After each step: `tokens` join the sequence, and the rows of its first computed_length tokens, with the state
        at computed_length, are in the sources."""
        if tokens is None:
            call("kvstrata_writer_advance", self.pointer, None, computed_length)
            return
        c, keep = tokens_struct(tokens, extra_keys)
        call("kvstrata_writer_advance", self.pointer, ctypes.byref(c), computed_length)
        del keep

    def snapshot(self) -> None:
        """Takes a snapshot at the computed length now."""
        call("kvstrata_writer_snapshot", self.pointer)

    def snapshot_positions(self, prompt: Sequence[int], *, extra_keys: Iterable[ExtraKey] = ()) -> List[int]:
        """Where this prompt wants snapshots: cut prefill chunks there, advance then takes them."""
        c, keep = tokens_struct(prompt, extra_keys)
        count = ctypes.c_uint64()
        capacity = 16
        while True:
            out = (ctypes.c_uint64 * capacity)()
            status = lib.kvstrata_writer_snapshot_positions(self.pointer, ctypes.byref(c), out, capacity,
                                                            ctypes.byref(count), None)
            if status == _abi.KVSTRATA_E_BUFFER_TOO_SMALL:
                capacity = count.value
                continue
            if status != _abi.KVSTRATA_OK:  # once more, for the error's text
                call("kvstrata_writer_snapshot_positions", self.pointer, ctypes.byref(c), out, capacity,
                     ctypes.byref(count))
            del keep
            return list(out[:count.value])

    def truncate(self, length: int) -> None:
        """Takes back the tokens from `length` on."""
        call("kvstrata_writer_truncate", self.pointer, length)

    def fork(self) -> "Writer":
        """An independent writer at the same point, with the same sources until they are set anew."""
        return Writer(None, _fork_of=self)  # type: ignore[arg-type]

    def commit(self, *, flags: int = 0, timeout_ms: int = 0) -> _abi.kvstrata_commit_info:
        """Waits until everything accepted so far is stored and visible."""
        return get("kvstrata_writer_commit", _abi.kvstrata_commit_info, self.pointer, flags, timeout_ms)

    def release(self) -> None:
        super().release()
        self._sources.clear()
