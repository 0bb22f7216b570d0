# SPDX-License-Identifier: Apache-2.0
"""Golden digests and keys, computed from FORMAT.md ("Records", "Digests") without a line of the library.

Needs the Python module xxhash (Debian: python3-xxhash); ends with 77 where it is absent.

usage: golden.py FILE          compares FILE with what is computed here
       golden.py FILE --write  writes it
"""

import struct
import sys

try:
    import xxhash
except ImportError:
    print("skipped: golden digests need the Python module xxhash")
    sys.exit(77)

ROOT_SEED, BLOCK_SEED = 0x6B76737472610001, 0x6B76737472610002
FIELDS = ("model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version",
          "kernel.numerics", "tenant")
SMALL = ("create=custom,32,4,1,8,3 stream=1,1,0,4,12,0,1,0 stream=2,10,0,1,10,8,1,0 stream=1,3,1,32,20,0,1,0 "
         "stream=2,11,0,4,6,4,1,0 stream=2,12,0,4,6,3,1,0")

# Canonical texts, written by hand after the grammar at the head of lib/layout/layout_text.cc.
GQA_TEXT = """kvstrata-layout 1
family gqa
profile opaque
block_tokens 16
replay none window 0 layers 0
streams 2
stream 0 rows key layer 0 ratio 1 row_bytes 4 state_rows 0 packing raw flags exact
stream 1 rows value layer 0 ratio 1 row_bytes 4 state_rows 0 packing raw flags exact
end
"""
SMALL_TEXT = """kvstrata-layout 1
family custom
profile opaque
block_tokens 32
replay full window 8 layers 3
streams 5
stream 0 rows csa_entry layer 0 ratio 4 row_bytes 12 state_rows 0 packing raw flags -
stream 1 state window layer 0 ratio 1 row_bytes 10 state_rows 8 packing raw flags -
stream 2 rows hca_entry layer 1 ratio 32 row_bytes 20 state_rows 0 packing raw flags -
stream 3 state overlap layer 0 ratio 4 row_bytes 6 state_rows 4 packing raw flags -
stream 4 state open layer 0 ratio 4 row_bytes 6 state_rows 3 packing raw flags -
end
"""


def digest128(data, seed=0):
    """(lo, hi)"""
    number = xxhash.xxh3_128_intdigest(data, seed)
    return number & (2**64 - 1), number >> 64


def as_hex(digest):
    """The 16 bytes as they stand in memory and in files."""
    return struct.pack("<QQ", *digest).hex()


def tokens_of(parts):
    ids = []
    for kind, count in parts:
        ids += [(kind * 101 + position * 7) % 50000 for position in range(len(ids), len(ids) + count)]
    return ids


def framed(data):
    return struct.pack("<I", len(data)) + data


def root_digest(layout_text, changed):
    """The namespace text is the framed canonical identity and the framed layout text."""
    values = {name: "kvstrata " + name for name in FIELDS}
    values.update(changed)
    identity = struct.pack("<I", len(values))
    for name in sorted(values):
        value = values[name].encode()
        identity += framed(name.encode()) + struct.pack("<Q", len(value)) + value
    text = framed(identity) + framed(layout_text.encode())
    return digest128(struct.pack("<Q", len(text)) + text, ROOT_SEED)


def layout_digest(text):
    """The digest of a root, high byte first (lib/layout/layout.h)."""
    data = text.encode()
    lo, hi = digest128(struct.pack("<Q", len(data)) + data, ROOT_SEED)
    return struct.pack(">QQ", hi, lo).hex()


def chain(root, ids, block_tokens):
    digests, parent = [], root
    for begin in range(0, len(ids) - len(ids) % block_tokens, block_tokens):
        block = ids[begin:begin + block_tokens]
        parent = digest128(struct.pack("<QQQ", *parent, len(block)) + struct.pack(f"<{len(block)}i", *block) +
                           struct.pack("<Q", 0), BLOCK_SEED)
        digests.append(parent)
    return digests


def escaped(text):
    return text.replace(" ", "~").replace("\n", "|")


def keys_case(name, layout, text, block_tokens, spec, parts, changed):
    keys = chain(root_digest(text, changed), tokens_of(parts), block_tokens)
    digests, count = ",".join(map(as_hex, keys)), len(keys)
    fields = "".join(f" set.{field}={escaped(value)}" for field, value in changed.items())
    return [f"case {name}", f"layout L {layout}", "cache C capacity_bytes=1000000",
            f"namespace N cache=C layout=L{fields}", f"store N tokens={spec} => blocks_stored={count}",
            f"events C from=1 => count={count} digests={digests}", ""]


def make():
    lines = ["# Canonical texts, digests and keys of blocks. Written by golden.py, from the rules in",
             "# lib/format/FORMAT.md and an XXH3 that is not the library's; digests as the bytes in memory.", ""]
    for name, layout, text in (("gqa", "gqa=1,1,4,1,16", GQA_TEXT), ("custom", SMALL, SMALL_TEXT)):
        lines += [f"case text_and_digest_of_a_{name}_layout",
                  f"layout L {layout} => digest={layout_digest(text)} text={escaped(text)}",
                  f"layout K text={escaped(text)} => digest={layout_digest(text)}", ""]
    lines += keys_case("keys_of_a_chain", "gqa=1,1,4,1,16", GQA_TEXT, 16, "1x48", [(1, 48)], {})
    lines += keys_case("keys_of_a_chain_of_another_tenant", "gqa=1,1,4,1,16", GQA_TEXT, 16, "1x20,3x30",
                       [(1, 20), (3, 30)], {"tenant": "somebody else"})
    lines += keys_case("keys_of_a_custom_layout", SMALL, SMALL_TEXT, 32, "9x70", [(9, 70)], {})
    return "\n".join(lines[:-1]) + "\n"


def main():
    if sys.argv[2:] == ["--write"]:
        with open(sys.argv[1], "w", encoding="utf-8") as stream:
            stream.write(make())
        return 0
    with open(sys.argv[1], encoding="utf-8") as stream:
        same = stream.read() == make()
    print("golden: " + ("as computed" if same else f"{sys.argv[1]} is not what the rules give"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
