# SPDX-License-Identifier: Apache-2.0
"""The vector file and the numbers both sides can make (read by tests/golden/vector_file.h).

Owns: the layout of a .kvg file and the integer hash behind "generated" records.
Everything is little-endian. A file is

    8 bytes  magic "KVGOLD01"
    u64      seed of the generated records
    u32      number of records, then the records back to back

and a record is

    u16 length of the name, the name (ASCII)
    u8  kind: 1 = float32, 2 = int32, 3 = generated float32
    u8  rank, rank x u64 dimensions (row-major, innermost last)
    u64 stride: the data are elements 0, stride, 2*stride, ... of the flattened tensor
    u64 count of stored elements: ceil(elements / stride); for a generated record always 2
    count x 4 bytes: the elements; for a generated record the floats scale and offset

A stride that shares no factor with the row width visits another set of channels in every row, so a swapped row or
channel is still seen in a file a fraction of the size.

Element i of a generated record is offset + scale * h_i, where h_i is the signed top 16 bits of the i-th output of
SplitMix64 seeded with FNV-1a(name) + seed, divided by 32768. Scale is a power of two and offset a small integer, so
every value is an exact float32 and no rounding can differ between the two languages.
"""

import struct

import numpy as np

MAGIC = b"KVGOLD01"
FLOAT32, INT32, GENERATED = 1, 2, 3


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode("ascii"):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def generated(name, shape, scale, offset, seed):
    """The float32 tensor that the generated record `name` stands for."""
    start = np.uint64((fnv1a(name) + seed) & 0xFFFFFFFFFFFFFFFF)
    with np.errstate(over="ignore"):
        index = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
        z = start + index * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    unit = ((z >> np.uint64(48)).astype(np.int64) - 32768).astype(np.float64) / 32768.0
    exact = offset + scale * unit
    values = exact.astype(np.float32)
    assert (values == exact).all(), name
    return values.reshape(shape)


class VectorFile:
    """Collects records and writes them in one go."""

    def __init__(self, seed):
        self.seed = seed
        self.records = []
        self.names = set()

    def _record(self, name, kind, shape, stride, data):
        assert name not in self.names, name
        self.names.add(name)
        text = name.encode("ascii")
        head = struct.pack("<H", len(text)) + text + struct.pack("<BB", kind, len(shape))
        head += b"".join(struct.pack("<Q", d) for d in shape) + struct.pack("<QQ", stride, data.size)
        self.records.append(head + data.tobytes())

    def tensor(self, name, values, stride=1):
        values = np.ascontiguousarray(values)
        kind, dtype = (FLOAT32, "<f4") if values.dtype.kind == "f" else (INT32, "<i4")
        self._record(name, kind, values.shape, stride, values.reshape(-1)[::stride].astype(dtype))

    def scalar(self, name, value):
        self.tensor(name, np.array([value], dtype=np.int32))

    def generated(self, name, shape, scale, offset):
        self._record(name, GENERATED, shape, 1, np.array([scale, offset], dtype="<f4"))
        return generated(name, shape, scale, offset, self.seed)

    def write(self, path):
        body = MAGIC + struct.pack("<QI", self.seed, len(self.records)) + b"".join(self.records)
        path.write_bytes(body)
        return len(body)
