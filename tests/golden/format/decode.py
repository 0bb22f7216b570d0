# SPDX-License-Identifier: Apache-2.0
"""A second decoder of records and of the segment store, written from lib/format/FORMAT.md alone, with nothing but the
standard library. It knows no XXH3, so it reads checksums without comparing them; everything else that a reader must
refuse, it refuses.

usage: decode.py FOLDER        every record of the folder must say what expected.json says, and no damaged one may pass;
                               its segment store must hold what store.json says
       decode.py META PAYLOAD  prints what a record says
"""

import json
import os
import struct
import sys


class Refused(Exception):
    """The field at fault."""


def require(holds, field):
    if not holds:
        raise Refused(field)


def read(layout, data, offset, field):
    require(offset + struct.calcsize(layout) <= len(data), field)
    return struct.unpack_from(layout, data, offset)


def identity(data, magic):
    require(data[:4] == magic, "magic")
    version, kind = read("<HH", data, 4, "version")
    require(1 <= version <= 2, "version")
    require(1 <= kind <= 5, "kind")
    require(version == 1 or kind <= 2, "version")
    name_space, sequence, position, key, parent, tail = read("<16sQQ24s24s16s", data, 8, "identity")
    return {"version": version, "kind": kind, "namespace": name_space.hex(), "sequence": sequence,
            "position": position, "key": key.hex(),
            "parent": parent.hex(), "tail": tail.hex()}


def check_more(kind, more, reserved):
    require(reserved == 0, "reserved")
    require(more <= 63 and (more == 0 or kind == 1), "more")


def keys(data, offset, count):
    return [data[offset + 24 * i:offset + 24 * (i + 1)].hex() for i in range(count)]


def decode_meta(data):
    out = identity(data, b"KVSM")
    out["payload_bytes"], more, reserved = read("<QII", data, 104, "meta")
    check_more(out["kind"], more, reserved)
    require(len(data) == 128 + 24 * more, "meta")
    out["more"] = keys(data, 120, more)
    return out


def decode_payload(data):
    out = identity(data, b"KVSH")
    head_bytes, tokens, extra_bytes, slices, more, reserved = read("<IIIIII", data, 104, "counts")
    check_more(out["kind"], more, reserved)
    require(tokens <= 1 << 16, "tokens")
    require(extra_bytes <= 1 << 24, "extra_bytes")
    require(slices <= 1 << 13, "slices")
    blocks, is_coded = 1 + more, out["version"] == 2
    entry_bytes = 16 + (16 if is_coded else 8) * blocks
    require(head_bytes == 136 + 4 * tokens + extra_bytes + 24 * more + entry_bytes * slices, "head_bytes")
    require(head_bytes <= len(data), "head_bytes")
    out["tokens"] = list(struct.unpack_from(f"<{tokens}i", data, 128))
    more_at = 128 + 4 * tokens + extra_bytes
    out["extra"] = data[128 + 4 * tokens:more_at].hex()
    out["more"] = keys(data, more_at, more)
    out["slices"] = []
    offset = head_bytes
    for i in range(slices):
        entry_at = more_at + 24 * more + entry_bytes * i
        stream, flags, size, *checksums = struct.unpack_from(f"<IIQ{blocks}Q", data, entry_at)
        require(flags <= 1, "slice flags")
        require(flags == 0 or size == 0, "slice bytes")
        sizes = struct.unpack_from(f"<{blocks}Q", data, entry_at + 16 + 8 * blocks) if is_coded else [size] * blocks
        require(max(sizes) <= size, "stored bytes")
        require(sum(sizes) <= len(data) - offset, "slice bytes")
        stored = []
        for taken in sizes:
            stored.append(data[offset:offset + taken].hex())
            offset += taken
        out["slices"].append({"stream": stream, "absent": flags, "bytes": size, "data": stored, "checksums": checksums})
    require(offset == len(data), "payload")
    some_coded = any(len(block) < 2 * entry["bytes"] for entry in out["slices"] for block in entry["data"])
    require(is_coded == some_coded, "version")
    return out


def decode_frame(frame, size):
    """A zstd frame of blocks that are raw or one byte over and over; others are beyond the standard library."""
    magic, flags = read("<IB", frame, 0, "frame")
    require(magic == 0xFD2FB528 and flags in (0x20, 0x60), "frame")
    offset = 6 if flags == 0x20 else 7
    told = read("<B", frame, 5, "frame")[0] if flags == 0x20 else 256 + read("<H", frame, 5, "frame")[0]
    out, last = b"", False
    while not last:
        low, high = read("<HB", frame, offset, "frame")
        header = low | high << 16
        last, kind, count = header & 1, header >> 1 & 3, header >> 3
        require(kind < 2, "frame")
        part = frame[offset + 3:offset + 3 + (count if kind == 0 else 1)]
        require(len(part) == (count if kind == 0 else 1), "frame")
        out += part if kind == 0 else part * count
        offset += 3 + len(part)
    require(offset == len(frame) and len(out) == told == size, "frame")
    return out


# Of each packing: the bytes of its columns in a row, and how wide their numbers are.
COLUMNS = {"fp8_row_584": [(448, 1), (128, 2), (8, 1)], "fp8_row_528": [(512, 1), (16, 1)],
           "fp4_row_288": [(256, 1), (32, 1)], "fp8_key_132": [(128, 1), (4, 4)], "fp4_key_68": [(64, 1), (4, 1)],
           "fp8_row_656": [(512, 1), (16, 4), (128, 2)]}
WIDTHS = {"f32": 4, "bf16": 2, "f16": 2}


def decode_slice(stored, size, packing, row_bytes):
    """The rows of a slice that takes fewer bytes than it has."""
    if stored[:1] == b"\x02":
        return decode_packed(stored, size, packing, row_bytes)
    require(stored[:1] == b"\x01", "form")
    return decode_planes(stored[1:], size, packing, row_bytes)


def decode_planes(stored, size, packing, row_bytes):
    if packing == "raw":
        row_bytes, columns = size, [(size, 1)]
    else:
        width = WIDTHS.get(packing, 1)
        columns = COLUMNS.get(packing, [(row_bytes, width if row_bytes % width == 0 else 1)])
    require(size <= 4 << 20 and size % row_bytes == 0, "slice bytes")
    rows = [b""] * (size // row_bytes)
    offset = 0
    for column_bytes, width in columns:
        plane_bytes = column_bytes // width * len(rows)
        planes = []
        for _ in range(width):
            (taken,) = read("<I", stored, offset, "plane")
            plane = stored[offset + 4:offset + 4 + taken]
            require(len(plane) == taken <= plane_bytes, "plane")
            planes.append(plane if taken == plane_bytes else decode_frame(plane, plane_bytes))
            offset += 4 + taken
        numbers = bytes(plane[i] for i in range(plane_bytes) for plane in planes)
        rows = [row + numbers[column_bytes * i:column_bytes * (i + 1)] for i, row in enumerate(rows)]
    require(offset == len(stored), "plane")
    return b"".join(rows)


def e4m3(code):
    require(code & 0x7F != 0x7F, "code")
    exponent, mantissa = code >> 3 & 15, code & 7
    value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0**(exponent - 10)
    return -value if code & 0x80 else value


def e2m1(code):
    value = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[code & 7]
    return -value if code & 8 else value


def ue8m0(byte):
    require(byte != 255, "scale")
    return 2.0**(byte - 127)


# Of each packing: its number, the numbers of a row, those with a code, how many share a scale, bits of a code.
PACKED = {10: ("fp8_row_584", 512, 448, 64, 8), 11: ("fp8_row_528", 512, 512, 32, 8),
          12: ("fp4_row_288", 512, 512, 16, 4), 13: ("fp8_key_132", 128, 128, 128, 8),
          14: ("fp4_key_68", 128, 128, 32, 4)}


def unpack_row(row, packing):
    """The numbers of a packed row."""
    name, width, coded, block, bits = PACKED[packing]
    code_bytes = coded * bits // 8
    if bits == 8:
        values = [e4m3(code) for code in row[:code_bytes]]
    else:
        values = [e2m1(byte >> shift & 15) for byte in row[:code_bytes] for shift in (0, 4)]
    plain = row[code_bytes:code_bytes + 2 * (width - coded)]
    scales = row[code_bytes + len(plain):]
    if name == "fp8_key_132":
        factors = list(struct.unpack("<f", scales))
    else:
        factors = [(e4m3 if name == "fp4_row_288" else ue8m0)(byte) for byte in scales[:coded // block]]
    values = [value * factors[i // block] for i, value in enumerate(values)]
    return values + [struct.unpack("<f", b"\0\0" + plain[i:i + 2])[0] for i in range(0, len(plain), 2)]


def decode_packed(stored, size, packing, row_bytes):
    (number,) = read("<B", stored, 1, "packing")
    require(number in PACKED and packing in ("f32", "bf16"), "packing")
    require(row_bytes == PACKED[number][1] * WIDTHS[packing] and size % row_bytes == 0, "packing")
    packed_bytes = sum(bytes_of for bytes_of, _ in COLUMNS[PACKED[number][0]])
    packed = decode_planes(stored[2:], size // row_bytes * packed_bytes, PACKED[number][0], packed_bytes)
    out = b""
    for at in range(0, len(packed), packed_bytes):
        for value in unpack_row(packed[at:at + packed_bytes], number):
            number_bytes = struct.pack("<f", value)
            require(packing == "f32" or number_bytes[:2] == b"\0\0", "packing")
            out += number_bytes if packing == "f32" else number_bytes[2:]
    return out


def rows_of(record, layout):
    """Of each slice, its rows as the layout's streams have them."""
    streams = [line.split() for line in layout.splitlines() if line.startswith("stream ")]
    out = []
    for entry in record["slices"]:
        words = streams[entry["stream"]]
        packing, row_bytes = words[words.index("packing") + 1], int(words[words.index("row_bytes") + 1])
        stored = [bytes.fromhex(block) for block in entry["data"]]
        out.append([(block if len(block) == entry["bytes"] else
                     decode_slice(block, entry["bytes"], packing, row_bytes)).hex() for block in stored])
    return out


def decode_namespace(frame):
    """Identity fields and layout text; a zstd frame is beyond the standard library."""
    method, size = read("<BI", frame, 0, "frame")
    require(method == 0 and size == len(frame) - 5, "frame")
    text = frame[5:]
    (identity_bytes,) = read("<I", text, 0, "identity")
    layout_at = 4 + identity_bytes
    (layout_bytes,) = read("<I", text, layout_at, "layout")
    require(layout_at + 4 + layout_bytes == len(text), "layout")
    fields, offset = {}, 8
    for _ in range(read("<I", text, 4, "identity")[0]):
        (length,) = read("<I", text, offset, "identity")
        name = text[offset + 4:offset + 4 + length].decode("ascii")
        (size,) = read("<Q", text, offset + 4 + length, "identity")
        offset += 12 + length
        fields[name] = text[offset:offset + size]
        offset += size
    require(offset == layout_at and list(fields) == sorted(fields), "identity")
    return fields, text[layout_at + 4:].decode("ascii")


def decode_uses(table):
    tick, frontier, blocks, snapshots = read("<QQII", table, 0, "uses")
    require(frontier <= tick < 1 << 48, "tick")
    require(len(table) == 24 + 24 * blocks + 24 * snapshots, "uses")
    out = {"tick": tick, "frontier": frontier, "blocks": [], "snapshots": []}
    for i in range(blocks):
        sequence, heat, expires_at, first, more, priority, reserved = read("<QQIBBBB", table, 24 + 24 * i, "blocks")
        require(first + more <= 63 and priority <= 2 and reserved == 0, "blocks")
        out["blocks"].append([sequence, heat % (1 << 48), heat >> 48, expires_at, first, more, priority])
    for i in range(snapshots):
        sequence, last_use, frequency, reserved = read("<QQII", table, 24 + 24 * (blocks + i), "snapshots")
        require(reserved == 0, "snapshots")
        out["snapshots"].append([sequence, last_use, frequency])
    return out


def decode(meta, payload):
    out = decode_meta(meta)
    body = decode_payload(payload)
    require(all(body[field] == out[field] for field in identity(meta, b"KVSM")), "identity")
    require(out["payload_bytes"] == len(payload), "payload_bytes")
    out.update(body)
    return out


def envelope(data, magic, size):
    require(data[:8] == magic, "magic")
    version, told = read("<II", data, 8, "version")
    require(version == 1 and told == size and len(data) >= size, "version")


def decode_super(data):
    """The copy with the higher epoch, of those that are intact."""
    copies = []
    for offset in 0, 4096:
        try:
            envelope(data[offset:], b"KVSSUP\xff\n", 64)
            copies.append(read("<16sQQQ", data, offset + 16, "super"))
        except Refused:
            pass
    require(copies, "super")
    store, epoch, segment_bytes, reserved = max(copies, key=lambda copy: copy[1])
    require(epoch > 0 and segment_bytes > 0 and segment_bytes % 4096 == 0 and reserved == 0, "super")
    return store


def decode_header(data, magic, store):
    envelope(data, magic, 80)
    owner, _, number, _, entries, body_bytes = read("<16sQQQQQ", data, 16, "header")
    require(owner == store and number > 0, "header")
    return number, entries, body_bytes


def decode_entry(data, offset):
    size, kind, extents, meta_bytes, _, _, key = read("<IBBHQQ32s", data, offset, "entry")
    require(kind in (1, 2) and extents <= 8 and meta_bytes <= 4096, "entry")
    if kind == 2:
        require(size == 56 and extents == 0 and meta_bytes == 0, "entry")
        return size, key, None
    payload_bytes, last_use, reserved = read("<QII", data, offset + 56, "entry")
    require(last_use == 0 and reserved == 0, "reserved")
    place = [read("<III", data, offset + 72 + 12 * i, "extents") for i in range(extents)]
    require(all(units > 0 for _, _, units in place), "extents")
    require(sum(units for _, _, units in place) == -(-payload_bytes // 4096), "extents")
    meta_at = 72 + 12 * extents
    require(size == -(-(meta_at + meta_bytes) // 8) * 8 and offset + size <= len(data), "entry")
    return size, key, (payload_bytes, place, data[offset + meta_at:offset + meta_at + meta_bytes])


def apply_log(data, table, counted):
    offset, found = 4096, 0
    while offset < len(data) and (counted is None or found < counted):
        try:
            size, key, record = decode_entry(data, offset)
        except Refused:
            if counted is not None or offset % 4096 == 0:
                break
            offset += -offset % 4096
            continue
        table[key] = record
        offset += size
        found += 1
    return offset, found


def decode_store(folder):
    lane = os.path.join(folder, "lanes", "0")
    store = decode_super(load(os.path.join(lane, "super")))
    table, first = {}, 1
    checkpoints = []
    for name in ("checkpoint-a.ckp", "checkpoint-b.ckp"):
        if os.path.exists(os.path.join(lane, name)):
            data = load(os.path.join(lane, name))
            checkpoints.append((*decode_header(data, b"KVSCKP\xff\n", store), data))
    if checkpoints:
        first, entries, body_bytes, data = max(checkpoints)
        require(apply_log(data, table, entries) == (4096 + body_bytes, entries), "checkpoint")
    journals = sorted(int(name[8:-4]) for name in os.listdir(lane) if name.startswith("journal-"))
    for number in journals:
        data = load(os.path.join(lane, f"journal-{number:04}.log"))
        if number >= first:
            require(decode_header(data, b"KVSJRN\xff\n", store)[0] == number, "number")
            apply_log(data, table, None)
    told = {}
    for key, record in table.items():
        if record is not None:
            payload_bytes, place, meta = record
            payload = b"".join(load(os.path.join(lane, f"data-{segment:04}.seg"))[4096 * at:4096 * (at + units)]
                               for segment, at, units in place)
            told[key.hex()] = [meta.decode("ascii"), payload[:payload_bytes].decode("ascii")]
    return told


def decode_marks(data):
    """The last mark of each key, of those that are whole and intact as far as can be told without checksums."""
    told = {}
    for offset in range(0, len(data) - 63, 64):
        try:
            magic, version, reserved, key, value = read("<4sHH32s16s", data, offset, "mark")
            require(magic == b"KVSN" and version == 1 and reserved == 0, "mark")
            told[key.hex()] = value.hex()
        except Refused:
            pass
    return told


def check_store(folder):
    with open(os.path.join(folder, "store.json"), encoding="ascii") as stream:
        expected = json.load(stream)
    found = decode_store(os.path.join(folder, "store"))
    marks = decode_marks(load(os.path.join(folder, "store", "marks")))
    problems = [] if found == expected["records"] else [f"store: {found}, expected {expected['records']}"]
    return problems + ([] if marks == expected["marks"] else [f"marks: {marks}, expected {expected['marks']}"])


def load(path):
    with open(path, "rb") as stream:
        return stream.read()


def refuses(function, *arguments):
    try:
        function(*arguments)
    except Refused:
        return True
    return False


def check(folder):
    problems = []
    with open(os.path.join(folder, "expected.json"), encoding="ascii") as stream:
        expected = json.load(stream)
    layouts = {name: decode_namespace(bytes.fromhex(expected[f"{name}_namespace"]["slices"][0]["data"][0]))[1]
               for name in ("coded", "packed")}
    for name, wanted in expected.items():
        meta, payload = (load(os.path.join(folder, f"{name}.{suffix}")) for suffix in ("meta", "payload"))
        del wanted["record_key"]  # follows from digests
        rows = wanted.pop("rows", None)
        if rows is not None and rows_of(wanted, layouts[name.split("_")[0]]) != rows:
            problems.append(f"{name}: rows differ")
        if decode(meta, payload) != wanted:
            problems.append(f"{name}: {decode(meta, payload)}, expected {wanted}")
        problems += [f"{name}: accepts a meta of {n} bytes" for n in range(len(meta))
                     if not refuses(decode_meta, meta[:n])]
        problems += [f"{name}: accepts a payload of {n} bytes" for n in range(len(payload))
                     if not refuses(decode_payload, payload[:n])]
    fields, layout = decode_namespace(bytes.fromhex(expected["namespace"]["slices"][0]["data"][0]))
    if fields != {"model.weights": bytes(range(7)), "tenant": b""} or not layout.startswith("kvstrata-layout 1\n"):
        problems.append(f"namespace: {fields} {layout}")
    table = bytes.fromhex(expected["uses"]["slices"][0]["data"][0])
    epoch = 3 << 32
    if decode_uses(table) != {"tick": 1000, "frontier": 17, "snapshots": [[epoch + 3, 901, 6]], "blocks": [
            [epoch + 2, 900, 5, 0, 0, 0, 0], [epoch + 4, 800, 65535, 1800000000, 1, 1, 2]]}:
        problems.append(f"uses: {decode_uses(table)}")
    problems += [f"uses: accepts {n} bytes" for n in range(len(table)) if not refuses(decode_uses, table[:n])]
    return problems


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(decode(load(sys.argv[1]), load(sys.argv[2])), indent=1))
    else:
        found = check(sys.argv[1]) + check_store(sys.argv[1])
        print("\n".join(found) or "golden records: as expected")
        sys.exit(1 if found else 0)
