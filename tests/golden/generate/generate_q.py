# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/vectors/q.kvg: golden vectors of numeric profile Q, with numpy alone.

usage: generate_q.py [--out FOLDER]

Owns: an own reading of the formulas (DeepSeek-V4 paper and released program, as reference sections 2 to 5, 7 and 11
give them), in double precision, with fp32 and bf16 roundings only where the model has them. It shares no line and no
method with the C++: codes are found by searching the table of all values of a format, not from bits.

Codes and scale bytes are to be compared exactly, although levels sum in different orders. That needs inputs for which
no order matters: at every rounding to bf16 the exact value must be further from the nearest tie than any fp32
evaluation can err (the bounds are derived at each step below). Blocks of tokens are drawn until their entry is such;
which draw it was stands in NAME.draws. Records are listed in README.md.
"""

import argparse
import math
import pathlib

import numpy as np

import vector_file

SEED = 20261130
U = 2.0 ** -24  # half an ulp of 1 in fp32: what one rounded operation may err, relatively
F32 = np.float32


# ------------------------------------------------------------------------------------------------- numeric formats

def bf16(x):
    """Nearest bf16 number, ties to even, of float64 (finite) values; exact."""
    x = np.asarray(x, dtype=np.float64)
    mantissa, exponent = np.frexp(x)  # mantissa in [0.5, 1): 8 bits of it stay
    exponent = np.maximum(exponent, -125)
    return np.ldexp(np.rint(np.ldexp(x, 8 - exponent)), exponent - 8)


def decided(x, error):
    """True if every value within `error` of x rounds to the same bf16 number."""
    return bool(np.all(bf16(x - error) == bf16(x + error)))


def e4m3_values():
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0 ** -9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


E4M3 = e4m3_values()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest_code(table, x):
    """Index of the table's value nearest to |x|, of two equally near the even index; beyond the end the last."""
    size = np.minimum(np.abs(x).astype(np.float64), table[-1])
    above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    below = above - 1
    to_below, to_above = size - table[below], table[above] - size
    return np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, below)


def encode(table, sign_bit, x):
    """Codes with sign; x fp32 quotients. NaN: E4M3 has one, E2M1 gives 0."""
    codes = nearest_code(table, np.where(np.isnan(x), 0, x)) | np.where(np.signbit(x), sign_bit, 0)
    nan = (0x7F | np.where(np.signbit(x), sign_bit, 0)) if table is E4M3 else 0
    return np.where(np.isnan(x), nan, codes).astype(np.uint8)


def decode(table, sign_bit, codes):
    values = np.append(table, np.nan)[np.minimum(codes & (sign_bit - 1), len(table))]
    return np.where(codes & sign_bit, -values, values)


# block, table of the elements, floor of amax, kind of scale
FORMATS = {
    "v4_row": (64, E4M3, 1e-4, "ue8m0"),
    "v4_index_fp4": (32, E2M1, 6 * 2.0 ** -126, "ue8m0"),
    "v4_index_fp8": (128, E4M3, 1e-4, "fp32"),
    "v41_window": (32, E4M3, 1e-4, "ue8m0"),
    "v41_entry": (16, E2M1, 6 * 2.0 ** -9, "e4m3"),
}
FORMAT_IDS = {"v4_row": 1, "v4_index_fp4": 2, "v4_index_fp8": 3, "v41_window": 4, "v41_entry": 5}


def block_scale(name, block):
    """(bytes of the scale, its value). Powers of two from the fp32 product amax * fp32(1/largest)."""
    _, table, floor, kind = FORMATS[name]
    finite = np.abs(block[~np.isnan(block)])
    amax = np.maximum(F32(finite.max() if finite.size else 0), F32(floor))
    largest = F32(table[-1])
    if kind == "e4m3":
        code = int(nearest_code(E4M3, np.array([amax / largest], dtype=F32))[0])
        return bytes([code]), E4M3[code]
    product = F32(amax) * F32(F32(1) / largest)
    if np.isinf(product):
        exponent = 127
    else:
        mantissa, exponent = math.frexp(float(product))
        exponent = min(exponent - 1 if mantissa == 0.5 else exponent, 127)
    if kind == "fp32":
        return F32(2.0 ** exponent).tobytes(), 2.0 ** exponent
    return bytes([exponent + 127]), 2.0 ** exponent


def quantize(name, row, rope_dims):
    """(packed bytes: codes, rope, scales; the floats they mean) of one fp32 row."""
    block, table, _, _ = FORMATS[name]
    sign_bit = 128 if table is E4M3 else 8
    quantised = len(row) - rope_dims
    codes, scales, floats = [], b"", []
    for begin in range(0, quantised, block):
        part = row[begin:begin + block].astype(F32)
        stored, scale = block_scale(name, part)
        with np.errstate(all="ignore"):
            code = encode(table, sign_bit, part / F32(scale))
        codes.append(code)
        scales += stored
        floats.append(decode(table, sign_bit, code) * scale)
    codes = np.concatenate(codes)
    if table is E2M1:
        codes = codes[0::2] | (codes[1::2] << 4)
    rope = row[quantised:]
    if name == "v4_row":
        scales += bytes(-len(scales) % 8)
    rope_bytes = (bf16(rope).astype(F32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return codes.tobytes() + rope_bytes + scales, np.concatenate(floats + [bf16(rope)])


def check_published_values():
    """Reference section 7.5."""
    def codes(name, values):
        row = np.zeros(512 if name == "v41_entry" else 128, dtype=F32)
        row[:len(values)] = values
        packed, _ = quantize({"fp8": "v4_index_fp8", "fp4": "v4_index_fp4"}.get(name, name), row, 0)
        return packed
    assert codes("fp8", [3.0, 1.0, 0.3, -0.046875, 0.001])[:5] == bytes([0x7C, 0x70, 0x62, 0xCC, 0x20])
    assert codes("fp8", [450, 1])[:2] == bytes([0x76, 0x30])
    assert codes("fp8", [])[128:] == F32(2.0 ** -22).tobytes()
    assert codes("fp4", [2.5, .125, .375, .625, .875, 1.25, 1.75, -.5])[:4] == bytes([0x06, 0x22, 0x44, 0xA6])
    assert codes("fp4", [6.5, 1])[:1] == bytes([0x15]) and codes("fp4", [6.5, 1])[64] == 128
    assert codes("fp4", [])[64] == 1
    packed = codes("v41_entry", [2.5, 1, -.3, .05])
    assert packed[:2] == bytes([0x47, 0x09]) and packed[256] == 0x2D


# ------------------------------------------------------------------------------------------------ positions, steps

def frequencies():
    """Compress table: base 160000 with YaRN (reference section 2.4)."""
    k = np.arange(32)
    plain = 160000.0 ** (-2 * k / 64)
    low = math.floor(64 * math.log(65536 / (32 * 2 * math.pi)) / (2 * math.log(160000)))
    high = math.ceil(64 * math.log(65536 / (1 * 2 * math.pi)) / (2 * math.log(160000)))
    assert (low, high) == (15, 25)
    ramp = np.clip((k - low) / (high - low), 0, 1)
    return (plain / 16 * ramp + plain * (1 - ramp)).astype(F32)


FREQUENCIES = frequencies()


def rotate(row, position, inverse=False):
    """The last 64 channels, angle = fp32(position) * f as an fp32 product; and what fp32 may err: sin and cos within
    two ulp, two products, one sum: below 8 u (|a| + |b|)."""
    out, error = row.copy(), np.zeros(len(row))
    angle = (F32(position) * FREQUENCIES).astype(np.float64)
    a, b = row[-64::2], row[-63::2]
    sin = -np.sin(angle) if inverse else np.sin(angle)
    out[-64::2] = a * np.cos(angle) - b * sin
    out[-63::2] = a * sin + b * np.cos(angle)
    error[-64:] = np.repeat(8 * U * (np.abs(a) + np.abs(b)), 2)
    return out, error


def norm(row, weight, eps):
    """RMSNorm. The sum of squares may be taken in any order: relative error below width u, half of it after the root;
    eight more operations at most."""
    out = row / np.sqrt(np.mean(row * row) + float(F32(eps))) * weight
    return out, (len(row) / 2 + 8) * U * np.abs(out)


def hadamard(row):
    """Natural-order butterflies in fp32: their order is the definition, so no level may differ."""
    row = row.astype(F32)
    half = 1
    while half < len(row):
        pairs = row.reshape(-1, 2, half)
        row = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return bf16((row * F32(1 / math.sqrt(len(row)))).astype(np.float64))


def pool(values, gates):
    """Per channel softmax over the rows and the weighted sum; and what fp32 may err. A difference of gates of size D
    carries D u into exp, which adds 4 u; sums of the n rows whose weight is not 0 add n u, on both sides of the
    division."""
    difference = (gates - gates.max(axis=0)).astype(np.float64)
    weights = np.where(difference < -87, 0, np.exp(difference))
    out = (weights * values).sum(axis=0) / weights.sum(axis=0)
    active = weights > 0
    spread = np.where(active, -difference, 0).max(axis=0)
    size = (weights * np.abs(values)).sum(axis=0) / weights.sum(axis=0)
    return out, (spread + 4 + active.sum(axis=0)) * U * (size + np.abs(out)) + U * np.abs(out)


def emit(chain, pooled, error, weight, position):
    """Steps 1 to 4 of reference section 2.3; None if a rounding is not decided."""
    if not decided(pooled, error):
        return None
    row = bf16(pooled)
    row, error = norm(row, weight, chain["eps"])
    if not decided(row, error):
        return None
    row, error = rotate(bf16(row), position)
    if not decided(row, error):
        return None
    row = bf16(row)
    if chain["hadamard"]:
        row = hadamard(row)
    return quantize(chain["format"], row.astype(F32), 64 if chain["format"] == "v4_row" else 0)


# ---------------------------------------------------------------------------------------------------------- chains

# Compressors of V4 and V4.1. A chain that starts late has no previous block: its first entry is not compared.
CHAINS = {
    "csa": dict(ratio=4, width=512, overlap=True, format="v4_row", entries=5, start=0),
    "csa_far": dict(ratio=4, width=512, overlap=True, format="v4_row", entries=4, start=1000000),
    "key_fp4": dict(ratio=4, width=128, overlap=True, format="v4_index_fp4", hadamard=True, entries=8, start=0),
    "key_fp8": dict(ratio=4, width=128, overlap=True, format="v4_index_fp8", hadamard=True, entries=8, start=40000),
    "hca": dict(ratio=128, width=512, overlap=False, format="v4_row", entries=2, start=128 * 77, sparse=True),
    "window": dict(ratio=1, width=512, overlap=False, format="v4_row", entries=6, start=997),
    "v41_main": dict(ratio=2, width=512, overlap=False, format="v41_entry", eps=1e-20, ape=False, entries=5, start=6),
    "v41_key": dict(ratio=1, width=128, overlap=False, format="v4_index_fp4", eps=1e-20, entries=6, start=70000),
    "v41_window": dict(ratio=1, width=512, overlap=False, format="v41_window", eps=1e-20, entries=6, start=3),
}
MOST_DRAWS = 20000


def draw_block(name, chain, block, draw):
    """Values in [0, 2) and gates in [-4, 4) of one block of tokens. Sparse: of 128 gates of a channel all but 8 are 256
    lower, so that their weight is exactly 0 and the sum has 8 terms."""
    channels = chain["width"] * (2 if chain["overlap"] else 1)
    shape = (chain["ratio"], channels)
    values = vector_file.generated(f"{name}.{block}.{draw}.values", shape, 1.0, 1.0, SEED)
    gates = vector_file.generated(f"{name}.{block}.{draw}.gates", shape, 4.0, 0.0, SEED)
    if chain.get("sparse"):
        token, channel = np.indices(shape)
        gates = gates - F32(256) * ((token * 37 + channel * 11) % 16 != 0)
    return values, gates.astype(F32)


def entry_rows(chain, ape, previous, current):
    """What an entry is made of: P half of the previous block, C half of the current; gates with APE in fp32."""
    width = chain["width"]
    values, gates = current[0][:, -width:], (current[1] + ape).astype(F32)[:, -width:]
    if not chain["overlap"] or previous is None:
        return values, gates
    values = np.concatenate([previous[0][:, :width], values])
    return values, np.concatenate([(previous[1] + ape).astype(F32)[:, :width], gates])


def pack_again(chain, floats):
    """Profile Q's floats lie on the grid; kernels.h packs those. Where quantising took amax down to exactly half of
    what its scale reaches (3.08 to 3 of 6), that gives half the scale and twice the codes: other bytes, same floats."""
    again = quantize(chain["format"], floats.astype(F32), 64 if chain["format"] == "v4_row" else 0)
    assert (again[1] == floats).all()
    return again[0]


def write_chain(out, name, chain):
    chain = {"eps": 1e-6, "ape": chain["ratio"] > 1, "hadamard": False, "sparse": False, **chain}
    channels = chain["width"] * (2 if chain["overlap"] else 1)
    weight = out.generated(f"{name}.norm", (chain["width"],), 2.0, 0.0).astype(np.float64)
    ape = np.zeros((chain["ratio"], channels), dtype=F32)
    if chain["ape"]:
        ape = out.generated(f"{name}.ape", (chain["ratio"], channels), 1.0, 0.0)
    draws, packed, direct, pooled_rows, bounds, previous = [], b"", b"", [], [], None
    for block in range(chain["entries"]):
        compared = not (chain["overlap"] and chain["start"] > 0 and block == 0)
        for draw in range(MOST_DRAWS):
            current = draw_block(name, chain, block, draw)
            pooled, error = pool(*entry_rows(chain, ape, previous, current))
            if chain["ratio"] == 1:
                pooled, error = current[0][0].astype(np.float64), np.zeros(chain["width"])
            entry = emit(chain, pooled, error, weight, chain["start"] + block * chain["ratio"])
            if entry is not None or not compared:
                break
        assert entry is not None or not compared, name
        draws.append(draw)
        previous = current
        for kind, scale, offset in (("values", 1.0, 1.0), ("gates", 4.0, 0.0)):
            out.generated(f"{name}.{block}.{draw}.{kind}", current[0].shape, scale, offset)
        if compared:
            direct += entry[0]
            packed += pack_again(chain, entry[1])
            pooled_rows.append(pooled)
            bounds.append(error)
    print(f"{name}: draws {draws}")
    meta = [chain["ratio"], chain["width"], int(chain["overlap"]), FORMAT_IDS[chain["format"]], int(chain["hadamard"]),
            int(chain["eps"] < 1e-10), int(chain["ape"]), int(chain["sparse"]), chain["start"], len(pooled_rows)]
    out.tensor(f"{name}.meta", np.array(meta, dtype=np.int32))
    out.tensor(f"{name}.draws", np.array(draws, dtype=np.int32))
    for kind, rows in (("packed", packed), ("direct", direct)):
        out.tensor(f"{name}.{kind}", np.frombuffer(rows, dtype="<i4").reshape(len(pooled_rows), -1))
    out.tensor(f"{name}.pooled", np.array(pooled_rows, dtype=F32))
    # The stored number is itself rounded to fp32.
    out.tensor(f"{name}.pooled_bound", (np.array(bounds) * 1.001 + U * np.abs(pooled_rows)).astype(F32))


# ------------------------------------------------------------------------------------------------------ quantisers

def awkward_rows(width, rows):
    """Numbers of every size and sign, ties of bf16, E4M3 and E2M1, denormals, infinity, NaN; the last row zeros."""
    bits = np.random.Generator(np.random.PCG64(SEED + width)).integers(0, 2 ** 32, (rows, width), dtype=np.uint32)
    x = bits.view(F32).copy()
    x[:] = np.ldexp(1 + (bits & 0x7FFFFF) / 2.0 ** 23, (bits >> 23) % 8) * np.where(bits >> 31, -1, 1)
    ties = np.array([.25, .75, 1.25, 1.75, 2.5, 3.5, 5, 6, 448, 449, 450, 17 / 16, 19 / 16, 1 + 2 ** -8, 0, -0.0], F32)
    x[1] = ties[bits[1] % len(ties)] * np.where(bits[1] >> 31, -1, 1)
    x[2] = (bits[2] & 0x807FFFFF).view(F32)                       # denormals
    x[3] = np.ldexp(x[3], ((bits[3] >> 8) % 200).astype(int) - 110)
    x[4] *= F32(2.0 ** -20)
    x[5, ::37] = np.inf
    x[6, ::29] = np.nan
    x[7] = bf16(x[7])
    x[-1] = 0
    return x


def write_quantisers(out):
    for name in FORMATS:
        width = 128 if name.startswith("v4_index") else 512
        rows = awkward_rows(width, 12)
        rope_dims = 64 if name == "v4_row" else 0
        rows[5:7, width - rope_dims:] = 1  # the rope part's NaN payload is not what this is about
        packed = b"".join(quantize(name, row, rope_dims)[0] for row in rows)
        out.tensor(f"quantise.{name}.rows", rows)
        out.tensor(f"quantise.{name}.packed", np.frombuffer(packed, dtype="<i4").reshape(len(rows), -1))


# ------------------------------------------------------------------------------------------------ scores, attention

def packed_rows(out, name, rows, fmt):
    """A generated record of rows, its packing as a record, and what the packing means."""
    source = out.generated(f"{name}.source", rows, 4.0, 0.0)
    rope_dims = 64 if fmt == "v4_row" else 0
    results = [quantize(fmt, row, rope_dims) for row in source.reshape(-1, rows[-1])]
    packed = np.frombuffer(b"".join(r[0] for r in results), dtype="<i4")
    out.tensor(f"{name}.packed", packed.reshape(len(results), -1))
    return np.array([r[1] for r in results]).reshape(rows)


def write_scores(out):
    """Reference section 3: 64 heads of FP4 queries, FP4 and FP8 keys. Bound: any order of fp32 sums, kernels.h."""
    tokens, heads, width, entries, ratio = 3, 64, 128, 40, 4
    positions = ratio * entries - 2 + np.arange(tokens)  # sees 39, 40 and 40 entries
    queries = packed_rows(out, "scores.queries", (tokens, heads, width), "v4_index_fp4")
    weights = out.generated("scores.weights", (tokens, heads), 1.0, 0.0).astype(np.float64)
    weights *= float(F32(1 / math.sqrt(width)) * F32(1 / math.sqrt(heads)))
    for fmt in ("v4_index_fp4", "v4_index_fp8"):
        keys = packed_rows(out, f"scores.{fmt}", (entries, width), fmt)
        dots = np.einsum("thc,sc->ths", queries, keys)
        sizes = np.einsum("thc,sc->ths", np.abs(queries), np.abs(keys))
        scores = np.einsum("th,ths->ts", weights, np.maximum(dots, 0))
        bound = (width + heads + 4) * U * np.einsum("th,ths->ts", np.abs(weights), sizes)
        hidden = np.arange(entries)[None, :] >= ((positions + 1) // ratio)[:, None]
        out.tensor(f"scores.{fmt}.scores", np.where(hidden, -np.inf, scores).astype(F32))
        out.tensor(f"scores.{fmt}.bound", bound.astype(F32))


def write_topk(out):
    """Exact: higher score first, then lower index; NaN below every number; -1 where there are none."""
    entries, ratio, k = 300, 4, 16
    scores = out.generated("topk.scores", (4, entries), 1.0, 0.0).copy()
    scores[1] = np.round(scores[1] * 3)  # few values, many ties, zeros of both signs
    scores[2, ::3] = np.nan
    scores[3] = np.maximum(scores[3], 0)
    visible = [300, 299, 9, 5]
    picks = []
    for row, count in zip(scores, visible):
        order = sorted(range(count), key=lambda s: (np.isnan(row[s]), 0 if np.isnan(row[s]) else -row[s], s))
        picks.append((order + [-1] * k)[:k])
    out.tensor("topk.rows", scores)
    out.tensor("topk.meta", np.array([entries, ratio, k] + visible, dtype=np.int32))
    out.tensor("topk.picks", np.array(picks, dtype=np.int32))


def attend(query, rows, sink, scale, position):
    """One head in double without inner roundings; what a level may differ by per channel, and as a root mean square.

    Logits: d = width u scale sum |q kv|, which goes through exp into both sums, of len(rows) terms. Probabilities are
    rounded to bf16 (2^-8 each at most), the output too, the rotation mixes two channels, and is rounded again. The
    root mean square: independent roundings, three times what the worst single one gives.
    """
    logits = rows @ query * scale
    largest = max(logits.max(), sink)
    p = np.exp(logits - largest)
    p /= p.sum() + math.exp(sink - largest)
    output = p @ rows
    d = (len(query) * U * scale * (np.abs(rows) @ np.abs(query))).max()
    spread = p @ np.abs(rows)
    bound = spread * (2 * d + 2 * (len(rows) + 16) * U + 2.0 ** -8)
    bound += 2.0 ** -8 * (np.abs(output) + bound)
    rotated, error = rotate(output, position, inverse=True)
    bound[-64:] = np.repeat(bound[-64::2] + bound[-63::2], 2)
    bound = (bound + error) * (1 + 2.0 ** -8) + 2.0 ** -8 * np.abs(rotated)
    mean_square = 3 * 2.0 ** -8 * math.sqrt((p * p).sum()) * np.abs(rows).max() + 2 * 2.0 ** -8 * np.abs(output).max()
    return rotated, bound, mean_square


ATTENTION = {
    "attention_csa": dict(window="v4_row", entries="v4_row", ratio=4, count=48, picks=24, position=1000),
    "attention_hca": dict(window="v4_row", entries="v4_row", ratio=128, count=5, picks=0, position=700),
    "attention_v41": dict(window="v41_window", entries="v41_entry", ratio=2, count=40, picks=16, position=90000),
}


def write_attention(out, name, case):
    tokens, heads, width, window = 2, 4, 512, 128
    queries = bf16(out.generated(f"{name}.queries", (tokens, heads, width), 2.0, 0.0))
    sinks = out.generated(f"{name}.sinks", (heads,), 2.0, 1.0).astype(np.float64)
    kv = packed_rows(out, f"{name}.window", (window + tokens - 1, width), case["window"])
    entries = packed_rows(out, f"{name}.entries", (case["count"], width), case["entries"])
    picks = np.full((tokens, max(case["picks"], 1)), -1, dtype=np.int32)
    for t in range(tokens):
        for i in range(case["picks"]):
            picks[t, i] = -1 if i % 7 == 3 else (i * 17 + 5 * t) % case["count"]
    results = []
    for t in range(tokens):
        chosen = picks[t][picks[t] >= 0] if case["picks"] else np.arange(case["count"])
        rows = np.concatenate([kv[t:t + window], entries[chosen]])
        scale = float(F32(1) / np.sqrt(F32(width)))
        results += [attend(queries[t, h], rows, sinks[h], scale, case["position"] + t) for h in range(heads)]
    meta = [tokens, heads, width, window, case["ratio"], case["count"], case["picks"], case["position"],
            FORMAT_IDS[case["window"]], FORMAT_IDS[case["entries"]]]
    out.tensor(f"{name}.meta", np.array(meta, dtype=np.int32))
    out.tensor(f"{name}.picks", picks)
    out.tensor(f"{name}.output", np.array([r[0] for r in results], dtype=F32))
    out.tensor(f"{name}.bound", np.array([r[1] for r in results], dtype=F32))
    out.tensor(f"{name}.root_mean_square", np.array([r[2] for r in results], dtype=F32))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "vectors")
    folder = parser.parse_args().out
    check_published_values()
    out = vector_file.VectorFile(SEED)
    out.tensor("frequencies", FREQUENCIES)
    write_quantisers(out)
    for name, chain in CHAINS.items():
        write_chain(out, name, chain)
    write_scores(out)
    write_topk(out)
    for name, case in ATTENTION.items():
        write_attention(out, name, case)
    print(out.write(folder / "q.kvg"), "bytes")


if __name__ == "__main__":
    main()
