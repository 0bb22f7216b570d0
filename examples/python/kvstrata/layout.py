# SPDX-License-Identifier: Apache-2.0
"""What one model stores. Thread rule: a layout never changes and may be used by any thread at any time."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Sequence, Union

from . import _abi
from ._library import Handle, call, get, get_number, lib, make, sized


@dataclasses.dataclass(frozen=True)
class Stream:
    """One stream of rows or of state; the members of kvstrata_stream."""

    kind: int
    role: int
    layer: int = 0
    ratio: int = 1
    row_bytes: int = 0
    state_rows: int = 0
    packing: int = _abi.KVSTRATA_PACKING_RAW
    flags: int = 0

    def _to_c(self) -> _abi.kvstrata_stream:
        out = sized(_abi.kvstrata_stream)
        for member in dataclasses.fields(self):
            setattr(out, member.name, getattr(self, member.name))
        return out


def _preset_options(block_tokens: int, rows: int, index_keys: int, include_draft: bool) -> _abi.kvstrata_preset_options:
    out = sized(_abi.kvstrata_preset_options)
    out.block_tokens, out.rows, out.index_keys, out.include_draft = block_tokens, rows, index_keys, int(include_draft)
    return out


def _encoded(text: Union[str, bytes]) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


class Layout(Handle):
    """Immutable; may be released while namespaces made from it live on."""

    _destroy = "kvstrata_layout_destroy"

    @classmethod
    def create(cls, streams: Sequence[Stream], *, family: str = "custom", block_tokens: int = 0, profile: int = 0,
               replay_mode: int = 0, replay_window: int = 0, replay_layers: int = 0) -> "Layout":
        desc = sized(_abi.kvstrata_layout_desc)
        desc.block_tokens, desc.profile, desc.family = block_tokens, profile, family.encode()
        desc.replay_mode, desc.replay_window, desc.replay_layers = replay_mode, replay_window, replay_layers
        c_streams = (_abi.kvstrata_stream * len(streams))(*(stream._to_c() for stream in streams))
        desc.streams, desc.stream_count = c_streams, len(streams)
        return cls(make("kvstrata_layout_create", ctypes.byref(desc)))

    @classmethod
    def preset(cls, name: str, *, block_tokens: int = 0, rows: int = 0, index_keys: int = 0,
               include_draft: bool = False) -> "Layout":
        options = _preset_options(block_tokens, rows, index_keys, include_draft)
        return cls(make("kvstrata_layout_from_preset", name.encode(), ctypes.byref(options)))

    @classmethod
    def from_config(cls, text: Union[str, bytes], *, block_tokens: int = 0, rows: int = 0, index_keys: int = 0,
                    include_draft: bool = False) -> "Layout":
        """From the text of a model's Hugging Face config.json."""
        options = _preset_options(block_tokens, rows, index_keys, include_draft)
        data = _encoded(text)
        return cls(make("kvstrata_layout_from_config", data, len(data), ctypes.byref(options)))

    @classmethod
    def from_text(cls, text: Union[str, bytes]) -> "Layout":
        """From the canonical text that `text` gives."""
        data = _encoded(text)
        return cls(make("kvstrata_layout_from_text", data, len(data)))

    @classmethod
    def gqa(cls, layers: int, kv_heads: int, head_dim: int, element_bytes: int, block_tokens: int = 0) -> "Layout":
        return cls(make("kvstrata_layout_gqa", layers, kv_heads, head_dim, element_bytes, block_tokens))

    @classmethod
    def mla(cls, layers: int, row_bytes: int, block_tokens: int = 0) -> "Layout":
        return cls(make("kvstrata_layout_mla", layers, row_bytes, block_tokens))

    @classmethod
    def opaque(cls, block_tokens: int = 0) -> "Layout":
        return cls(make("kvstrata_layout_opaque", block_tokens))

    @property
    def info(self) -> _abi.kvstrata_layout_info:
        return get("kvstrata_layout_get_info", _abi.kvstrata_layout_info, self.pointer)

    def stream(self, index: int) -> _abi.kvstrata_stream:
        return get("kvstrata_layout_get_stream", _abi.kvstrata_stream, self.pointer, index)

    def snapshot_bytes(self, position: int) -> int:
        return get_number("kvstrata_layout_snapshot_bytes", self.pointer, position)

    def rows_at(self, index: int, position: int) -> int:
        return get_number("kvstrata_layout_rows_at", self.pointer, index, position)

    @property
    def text(self) -> str:
        """The canonical text; equal texts are equal layouts."""
        size = ctypes.c_uint64()
        # With no capacity every text is too long: only its size is asked for. Another failure comes again below.
        lib.kvstrata_layout_text(self.pointer, None, 0, ctypes.byref(size), None)
        buffer = ctypes.create_string_buffer(size.value)
        call("kvstrata_layout_text", self.pointer, buffer, size.value, ctypes.byref(size))
        return buffer.value.decode()
