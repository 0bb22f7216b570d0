# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of format versions 1 and 2 from lib/format/FORMAT.md alone; kept to show where they come
from.

usage: generate.py   (in this folder; needs the package xxhash, which the tests do not)

NAME.meta and NAME.payload are what a storage keeps, expected.json is what they say. The records coded_* and packed_*
are two namespaces with coded slices: version 2. store/ is a segment store, and store.json what is in it.
"""

import json
import os
import struct

import xxhash

MASK = 2**64 - 1
ROOT, BLOCK, TAIL = 0x6B76737472610001, 0x6B76737472610002, 0x6B76737472610003
LAYOUT = (b"kvstrata-layout 1\n"
          b"family custom\n"
          b"profile f\n"
          b"block_tokens 4\n"
          b"replay none window 0 layers 0\n"
          b"streams 2\n"
          b"stream 0 rows other layer 0 ratio 2 row_bytes 3 state_rows 0 packing raw flags -\n"
          b"stream 1 state window layer 0 ratio 1 row_bytes 5 state_rows 3 packing raw flags optional\n"
          b"end\n")
FIELDS = [(b"model.weights", bytes(range(7))), (b"tenant", b"")]
LIFE = bytes(range(0xA0, 0xB0))
TOKENS = [1, -2, 2**31 - 1, -2**31, 7, 8]  # one block of four, then a tail of two
RUN_TOKENS = list(range(100, 112))         # another way to go on from that block: a run of three
CODED_LAYOUT = (b"kvstrata-layout 1\n"
                b"family custom\n"
                b"profile s\n"
                b"block_tokens 4\n"
                b"replay none window 0 layers 0\n"
                b"streams 3\n"
                b"stream 0 rows index_key layer 0 ratio 1 row_bytes 68 state_rows 0 packing fp4_key_68 flags -\n"
                b"stream 1 rows csa_entry layer 1 ratio 4 row_bytes 584 state_rows 0 packing fp8_row_584 flags -\n"
                b"stream 2 state window layer 0 ratio 1 row_bytes 64 state_rows 3 packing bf16 flags -\n"
                b"end\n")
PACKED_LAYOUT = (b"kvstrata-layout 1\n"
                 b"family custom\n"
                 b"profile q\n"
                 b"block_tokens 4\n"
                 b"replay none window 0 layers 0\n"
                 b"streams 2\n"
                 b"stream 0 rows csa_entry layer 0 ratio 2 row_bytes 1024 state_rows 0 packing bf16 flags exact\n"
                 b"stream 1 rows index_key layer 0 ratio 2 row_bytes 512 state_rows 0 packing f32 flags exact\n"
                 b"end\n")
PACKED_LIFE = bytes(range(0xE0, 0xF0))
CODED_LIFE = bytes(range(0xC0, 0xD0))
CODED_TOKENS = list(range(8))              # a run of two blocks
EXTRA = [(1, 9, b"image"), (4, 2, b"")]    # position, type, bytes


def checksum(data, sequence):
    return xxhash.xxh3_64_intdigest(data, seed=sequence * 0x9E3779B97F4A7C15 & MASK)


def chain_key(seed, digest_start, check_start, rest):
    digest = xxhash.xxh3_128_intdigest(digest_start + rest, seed=seed)
    check = xxhash.xxh3_64_intdigest(check_start + rest, seed=seed ^ MASK)
    return struct.pack("<QQQ", digest & MASK, digest >> 64, check)


def child_key(seed, parent, tokens, extra):
    rest = struct.pack(f"<Q{len(tokens)}iQ", len(tokens), *tokens, len(extra)) + extra
    return chain_key(seed, parent[:16], parent[16:], rest)


def extra_of(first, count):
    return b"".join(struct.pack("<IIQ", position - first, kind, len(data)) + data
                    for position, kind, data in EXTRA if first <= position < first + count)


def identity(magic, record):
    return struct.pack("<4sHH16sQQ24s24s16s", magic, record["version"], record["kind"],
                       bytes.fromhex(record["namespace"]), record["sequence"], record["position"],
                       bytes.fromhex(record["key"]), bytes.fromhex(record["parent"]), bytes.fromhex(record["tail"]))



def sealed(data, sequence):
    return data + struct.pack("<Q", checksum(data, sequence))


def payload_of(record):
    tokens, extra = record["tokens"], bytes.fromhex(record["extra"])
    more = b"".join(bytes.fromhex(key) for key in record["more"])
    slices = b""
    for entry in record["slices"]:
        data = [bytes.fromhex(block) for block in entry["data"]]
        # Of an absent slice the checksum is not looked at; a writer gives 0.
        entry["checksums"] = [0 if entry["absent"] else checksum(block, record["sequence"]) for block in data]
        slices += struct.pack(f"<IIQ{len(data)}Q", entry["stream"], entry["absent"], entry["bytes"],
                              *entry["checksums"])
        if record["version"] == 2:
            slices += struct.pack(f"<{len(data)}Q", *(len(block) for block in data))
    size = 136 + 4 * len(tokens) + len(extra) + len(more) + len(slices)
    head = identity(b"KVSH", record) + struct.pack("<IIIIII", size, len(tokens), len(extra), len(record["slices"]),
                                                   len(record["more"]), 0)
    head += struct.pack(f"<{len(tokens)}i", *tokens) + extra + more + slices
    return sealed(head, record["sequence"]) + b"".join(bytes.fromhex(block) for entry in record["slices"]
                                                       for block in entry["data"])


def slice_of(stream, *blocks, absent=0):
    return {"stream": stream, "absent": absent, "bytes": len(blocks[0]),
            "data": [data.hex() for data in blocks]}


def coded_slice_of(stream, size, *blocks):
    return {"stream": stream, "absent": 0, "bytes": size, "data": [data.hex() for data in blocks]}


def record(kind, name_space, sequence, position, key, parent, tail, tokens, extra, slices, more=(), version=1):
    return {"version": version, "kind": kind, "namespace": name_space.hex(), "sequence": sequence,
            "position": position, "key": key.hex(),
            "parent": parent.hex(), "tail": tail.hex(), "tokens": tokens, "extra": extra.hex(),
            "more": [key.hex() for key in more], "slices": slices}


def namespace_text(layout):
    names = struct.pack("<I", len(FIELDS))
    for name, value in FIELDS:
        names += struct.pack("<I", len(name)) + name + struct.pack("<Q", len(value)) + value
    return struct.pack("<I", len(names)) + names + struct.pack("<I", len(layout)) + layout


def frame_of(start, fill, size):
    """A zstd frame (RFC 8878) of a raw block with `start`, and of a block that says `fill` as often as is left."""
    content = struct.pack("<BB", 0x20, size) if size < 256 else struct.pack("<BH", 0x60, size - 256)
    raw = struct.pack("<I", len(start) << 3)[:3] + start
    return b"\x28\xb5\x2f\xfd" + content + raw + struct.pack("<I", (size - len(start)) << 3 | 3)[:3] + fill


def coded(*planes):
    return b"\x01" + b"".join(struct.pack("<I", len(plane)) + plane for plane in planes)


def add_coded_records(records, sequence):
    """Adds them, and gives the chain keys of their record keys."""
    text = namespace_text(CODED_LAYOUT)
    root = chain_key(ROOT, b"", b"", struct.pack("<Q", len(text)) + text)
    first = child_key(BLOCK, root, CODED_TOKENS[:4], b"")
    second = child_key(BLOCK, first, CODED_TOKENS[4:], b"")
    none24, none16 = bytes(24), bytes(16)
    noise = bytes((7 * i * i + i // 3) % 256 for i in range(4 * 68))
    keys = coded_slice_of(0, 4 * 68, coded(frame_of(b"keys", b"\x5a", 256), bytes(range(16))), noise)
    rows = coded_slice_of(1, 584,
                          coded(frame_of(b"", b"\x38", 448), bytes(range(64)), frame_of(b"hi", b"\x3f", 64),
                                b"scales!."),
                          coded(frame_of(b"row", b"\x39", 448), bytes(range(64, 128)), bytes(64), b"12345678"))
    window = coded_slice_of(2, 192, coded(bytes(range(100, 196)), frame_of(b"", b"\x40", 96)))
    nothing = slice_of(0, b""), slice_of(1, b"")
    frame = struct.pack("<BI", 0, len(text)) + text
    records["coded_namespace"] = record(3, CODED_LIFE, sequence + 5, 0, root, none24, none16, [], b"",
                                        [slice_of(0, frame)])
    records["coded_run"] = record(1, CODED_LIFE, sequence + 6, 4, first, root, none16, CODED_TOKENS, b"", [keys, rows],
                                  [second], version=2)
    records["coded_snapshot"] = record(2, CODED_LIFE, sequence + 7, 8, second, none24, none16, [], b"",
                                       [*nothing, window], version=2)
    # What a reader must make of them, taken together by hand.
    codes = b"keys" + b"\x5a" * 252
    row_keys = b"".join(codes[64 * i:64 * i + 64] + bytes(range(4 * i, 4 * i + 4)) for i in range(4))
    high = b"hi" + b"\x3f" * 62
    entries = [b"\x38" * 448 + b"".join(bytes([i, high[i]]) for i in range(64)) + b"scales!.",
               b"row" + b"\x39" * 445 + b"".join(bytes([64 + i, 0]) for i in range(64)) + b"12345678"]
    states = b"".join(bytes([100 + i, 0x40]) for i in range(96))
    records["coded_run"]["rows"] = [[row_keys.hex(), noise.hex()], [entry.hex() for entry in entries]]
    records["coded_snapshot"]["rows"] = [[""], [""], [states.hex()]]
    snapshot = child_key(BLOCK, second, [], struct.pack("<Q", 8) + none16)
    return {"coded_namespace": root, "coded_run": first, "coded_snapshot": snapshot}


def bf16(value):
    """Of a value that bf16 holds exactly."""
    bits = struct.pack("<f", value)
    assert struct.unpack("<f", bits) == (value,) and bits[:2] == b"\0\0"
    return bits[2:]


def halves(numbers):
    return [numbers[0::2], numbers[1::2]]


def add_packed_records(records, sequence):
    """A block of two rows of 512 numbers and two of 128, in packed forms."""
    text = namespace_text(PACKED_LAYOUT)
    root = chain_key(ROOT, b"", b"", struct.pack("<Q", len(text)) + text)
    block = child_key(BLOCK, root, CODED_TOKENS[:4], b"")
    none24, none16 = bytes(24), bytes(16)
    # E4M3: 0x38 is 1, 0x7e is 448, 0x01 is 2^-9, 0xb4 is -0.75, 0x80 is -0. UE8M0: 127 is 1, 120 is 2^-7.
    e4m3 = [(0x38, 1.0), (0x7E, 448.0), (0x01, 2.0**-9), (0xB4, -0.75), (0x80, -0.0)]
    codes = [[(i * i + 3 * row) % 5 for i in range(448)] for row in range(2)]
    scales = [bytes([127, 120, 128, 127, 126, 127, 130, 0]), bytes([127] * 7 + [0])]
    rope = [b"".join(bf16(float(i + 100 * row)) for i in range(64)) for row in range(2)]
    rows = [b"".join(bf16(e4m3[code][1] * 2.0**(scales[row][i // 64] - 127)) for i, code in enumerate(codes[row]))
            + rope[row] for row in range(2)]
    entry = b"\x02\x0a" + coded(b"".join(bytes(e4m3[code][0] for code in row) for row in codes),
                                *halves(rope[0] + rope[1]), scales[0] + scales[1])[1:]
    # E2M1: 1 is .5, 7 is 6, 10 is -1, 8 is -0; two in a byte, the even number in the low half.
    e2m1 = [(1, 0.5), (7, 6.0), (10, -1.0), (8, -0.0)]
    nibbles = [[(i // 3 + row) % 4 for i in range(128)] for row in range(2)]
    key_scales = [bytes([127, 125, 130, 127]), bytes([1, 127, 127, 200])]
    keys = [b"".join(struct.pack("<f", e2m1[n][1] * 2.0**(key_scales[row][i // 32] - 127))
                     for i, n in enumerate(nibbles[row])) for row in range(2)]
    key_codes = b"".join(bytes(e2m1[row[i]][0] | e2m1[row[i + 1]][0] << 4 for i in range(0, 128, 2)) for row in nibbles)
    key = b"\x02\x0e" + coded(key_codes, key_scales[0] + key_scales[1])[1:]
    frame = struct.pack("<BI", 0, len(text)) + text
    records["packed_namespace"] = record(3, PACKED_LIFE, sequence + 8, 0, root, none24, none16, [], b"",
                                         [slice_of(0, frame)])
    records["packed_block"] = record(1, PACKED_LIFE, sequence + 9, 4, block, root, none16, CODED_TOKENS[:4], b"",
                                     [coded_slice_of(0, 2048, entry), coded_slice_of(1, 1024, key)], version=2)
    records["packed_block"]["rows"] = [[b"".join(rows).hex()], [b"".join(keys).hex()]]
    return {"packed_namespace": root, "packed_block": block}


def main():
    text = namespace_text(LAYOUT)
    framed = struct.pack("<Q", len(text)) + text
    root = chain_key(ROOT, b"", b"", framed)
    block = child_key(BLOCK, root, TOKENS[:4], extra_of(0, 4))
    tail = child_key(TAIL, block, TOKENS[4:], extra_of(4, 2))[:16]
    snapshot = child_key(BLOCK, block, [], struct.pack("<Q", 6) + tail)
    run = [block]
    run_extra = struct.pack("<IIQ", 2, 5, 1) + b"x"  # of the second block; within the run it is at 6
    for i in range(3):
        run.append(child_key(BLOCK, run[-1], RUN_TOKENS[4 * i:4 * i + 4], run_extra if i == 1 else b""))
    frame = struct.pack("<BI", 0, len(text)) + text
    none24, none16, epoch = bytes(24), bytes(16), 3
    sequence = epoch << 32
    records = {
        "store": record(4, none16, sequence, epoch, none24, none24, none16, [], b"", []),
        "namespace": record(3, LIFE, sequence + 1, 0, root, none24, none16, [], b"", [slice_of(0, frame)]),
        "block": record(1, LIFE, sequence + 2, 4, block, root, none16, TOKENS[:4], extra_of(0, 4),
                        [slice_of(0, bytes(range(1, 7)))]),
        "snapshot": record(2, LIFE, sequence + 3, 6, block, none24, tail, TOKENS[4:], extra_of(4, 2),
                           [slice_of(0, b"abc"), slice_of(1, b"", absent=1)]),
        "run": record(1, LIFE, sequence + 4, 8, run[1], block, none16, RUN_TOKENS,
                      struct.pack("<IIQ", 6, 5, 1) + b"x",
                      [slice_of(0, *(bytes(range(6 * i, 6 * i + 6)) for i in range(5, 8)))], run[2:]),
    }
    part = struct.pack("<QQQ", 1, 0, 0)
    records["uses"] = record(5, none16, sequence + 5, 0, part, none24, none16, [], b"", [slice_of(0, uses(sequence))])
    record_chain_keys = {"store": none24, "namespace": root, "block": block, "snapshot": snapshot, "run": run[1],
                         "uses": part}
    record_chain_keys.update(add_coded_records(records, sequence))
    record_chain_keys.update(add_packed_records(records, sequence))
    for name, fields in records.items():
        payload = payload_of(fields)
        more = b"".join(bytes.fromhex(key) for key in fields["more"])
        meta = identity(b"KVSM", fields) + struct.pack("<QII", len(payload), len(fields["more"]), 0) + more
        meta = sealed(meta, fields["sequence"])
        fields["payload_bytes"] = len(payload)
        fields["record_key"] = (record_chain_keys[name] + struct.pack("<H", fields["kind"]) + bytes(6)).hex()
        for suffix, data in ("meta", meta), ("payload", payload):
            with open(f"{name}.{suffix}", "wb") as stream:
                stream.write(data)
    with open("expected.json", "w", encoding="ascii") as stream:
        json.dump(records, stream, indent=1)
        stream.write("\n")


def uses(sequence):
    """One block by itself, the second and third of a run that were used alike, and a snapshot."""
    return (struct.pack("<QQII", 1000, 17, 2, 1)
            + struct.pack("<QQIBBBB", sequence + 2, 900 | 5 << 48, 0, 0, 0, 0, 0)
            + struct.pack("<QQIBBBB", sequence + 4, 800 | 65535 << 48, 1800000000, 1, 1, 2, 0)
            + struct.pack("<QQII", sequence + 3, 901, 6, 0))


STORE = bytes(range(0x40, 0x50))


def sealed_at(head, size):
    """A structure that stands for itself: its checksum, seeded with 0, is its end."""
    head = head[:8] + struct.pack("<II", 1, size) + head[8:]
    return head + struct.pack("<Q", checksum(head, 0))


def super_copy(epoch):
    return sealed_at(b"KVSSUP\xff\n" + STORE + struct.pack("<QQQ", epoch, 1 << 26, 0), 64)


def log_header(magic, number, salt, entries=0, body_bytes=0):
    return sealed_at(magic + STORE + struct.pack("<QQQQQ", 2, number, salt, entries, body_bytes), 80).ljust(4096, b"\0")


def entry(kind, sequence, key, salt, offset, payload_bytes=0, extents=(), meta=b""):
    rest = struct.pack("<Q32s", sequence, key)
    if kind == 1:
        rest += struct.pack("<QII", payload_bytes, 0, 0) + b"".join(struct.pack("<III", *e) for e in extents) + meta
    rest += bytes(-(16 + len(rest)) % 8)
    start = struct.pack("<IBBH", 16 + len(rest), kind, len(extents), len(meta))
    return start + struct.pack("<Q", checksum(start + rest, salt + offset & MASK)) + rest


def mark(key, value, offset):
    body = b"KVSN" + struct.pack("<HH", 1, 0) + key + value
    return body + struct.pack("<Q", checksum(body, offset))


def marks():
    """The first key is marked again; a mark in between was cut off."""
    first, second = (bytes([n]) * 32 for n in (5, 6))
    return (mark(first, bytes([1]) * 16, 0) + mark(second, bytes([2]) * 16, 64) + bytes(64)
            + mark(first, bytes([3]) * 16, 192))


def store_files():
    """Three records: one of a checkpoint, one in two extents, replaced in a journal, an empty one. A fourth is gone."""
    one, two, empty, gone = (bytes([n]) * 32 for n in (1, 2, 3, 4))
    epoch = 2 << 40
    body = b""
    for fields in ((1, epoch, one, 5, [(0, 0, 1)], b"meta one"), (1, epoch + 1, two, 4, [(0, 1, 1)], b"older"),
                   (1, epoch + 2, gone, 4, [(0, 2, 1)], b"")):
        kind, sequence, key, size, extents, meta = fields
        body += entry(kind, sequence, key, 1000, 4096 + len(body), size, extents, meta)
    journal = log_header(b"KVSJRN\xff\n", 3, 2000)
    journal += entry(1, epoch + 3, two, 2000, len(journal), 4096 + 6, [(0, 4, 1), (0, 3, 1)], b"meta two")
    journal += entry(2, epoch + 4, gone, 2000, len(journal))
    journal = journal.ljust(8192, b"\0")  # the next flush
    journal += entry(1, epoch + 5, empty, 2000, len(journal), 0, [], b"")
    units = [b"first", b"gone", b"gone", b"second", b"A" * 4096]
    return {"marks": marks(),
            "lanes/0/super": super_copy(2).ljust(4096, b"\0") + super_copy(1),
            "lanes/0/checkpoint-a.ckp": log_header(b"KVSCKP\xff\n", 3, 1000, 3, len(body)) + body,
            "lanes/0/journal-0003.log": journal,
            "lanes/0/data-0000.seg": b"".join(unit.ljust(4096, b"\0") for unit in units)}


def write_store():
    os.makedirs("store/lanes/0", exist_ok=True)
    for name, data in store_files().items():
        with open(os.path.join("store", name), "wb") as stream:
            stream.write(data)
    told = {"01" * 32: ["meta one", "first"], "02" * 32: ["meta two", "A" * 4096 + "second"], "03" * 32: ["", ""]}
    with open("store.json", "w", encoding="ascii") as stream:
        json.dump({"records": told, "marks": {"05" * 32: "03" * 16, "06" * 32: "02" * 16}}, stream, indent=1)
        stream.write("\n")


if __name__ == "__main__":
    main()
    write_store()
