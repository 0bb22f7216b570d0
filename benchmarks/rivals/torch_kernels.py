# SPDX-License-Identifier: Apache-2.0
"""PyTorch on one thread of the CPU, eager and compiled, against our kernels: indexer, compressor and attention.

usage: torch_kernels.py LIBRARY [--level AVX2]     LIBRARY: a libkvstrata.so of a build without assertions

Same inputs on both sides; the outputs are compared before anything is timed. Both sides alternate in one process, and
the median of the pairs' quotients is printed as benchmarks/ratio.h does: how many times as long PyTorch takes.
"""

import argparse
import pathlib
import time

import torch

from kernels_header import Kernels

PAIRS = 21
ROOT = pathlib.Path(__file__).resolve().parents[2]


def seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def print_share(name, goal, ours, theirs):
    ours()
    theirs()
    ratios = []
    for pair in range(PAIRS):
        first, second = (ours, theirs) if pair % 2 == 0 else (theirs, ours)
        times = {function: seconds(function) for function in (first, second)}
        ratios.append(times[theirs] / times[ours])
    ratios.sort()
    low, middle, high = ratios[PAIRS // 4], ratios[PAIRS // 2], ratios[PAIRS - 1 - PAIRS // 4]
    print(f"ratio {name} {middle:.3f} goal {goal} spread {low:.3f}..{high:.3f} pairs {PAIRS}", flush=True)


def print_rivals(name, goal, ours, theirs):
    print_share(f"{name}_vs_torch_eager", goal, ours, theirs)
    compiled = torch.compile(theirs, dynamic=False)
    print_share(f"{name}_vs_torch_compile", goal, ours, compiled)


def must(condition, what):
    if not condition:
        raise SystemExit(f"the outputs differ: {what}")


def indexer(k, heads=64, width=128, entries=262144, top=512):
    """bf16 product by oneDNN, ReLU, weighted sum over heads, top-k; ours: index_scores and topk."""
    queries = torch.randn(heads, width).bfloat16()
    keys = torch.randn(entries, width).bfloat16()
    weights = torch.randn(heads)
    scaled = weights * (width * heads) ** -0.5
    scores = torch.empty(entries)
    picks = torch.empty(top, dtype=torch.int32)
    bf16 = k.constants["BF16"]
    score = k.index_scores(heads=heads, width=width, ratio=4, tokens=1, first_position=4 * entries, entries=entries,
                           queries=queries, query_type=bf16, keys=keys, key_type=bf16, weights=weights,
                           scores=scores)
    select = k.topk(k=top, ratio=4, tokens=1, first_position=4 * entries, entries=entries, scores=scores,
                    indices=picks)

    def ours():
        score()
        select()

    def theirs():
        dots = torch.relu(keys @ queries.T)
        return torch.topk(dots.float() @ scaled, top)

    ours()
    chosen = theirs()
    # torch rounds each dot product to bf16, so picks at the edge may differ.
    common = len(set(chosen.indices.tolist()) & set(picks.tolist()))
    must(common >= top * 0.97, f"{common} of {top} picks agree")
    print_rivals("indexer", ">=2.0", ours, theirs)


def rope_frequencies(dims):
    return (10000.0 ** (-torch.arange(0, dims, 2, dtype=torch.float32) / dims)).contiguous()


def compressor(k, tokens=8192, ratio=4, width=512, rope=64):
    """Overlapping gated pooling of fp32 rows, RMSNorm, RoPE, E4M3 rows with a power-of-two scale per 64."""
    channels = 2 * width
    values, gates = torch.randn(tokens, channels), torch.randn(tokens, channels)
    ape, weight = torch.randn(ratio, channels), torch.rand(width) + 0.5
    frequencies = rope_frequencies(rope)
    rows, nope = tokens // ratio, width - rope
    packed = torch.zeros(rows, 584, dtype=torch.uint8)
    state = [torch.zeros(ratio, width), torch.zeros(ratio, width), torch.zeros(ratio, channels),
             torch.zeros(ratio, channels)]
    ours = k.compress(profile=k.constants["PROFILE_Q"], pool_flags=k.constants["POOL_OVERLAP"], ratio=ratio,
                      width=width, rope_dims=rope, format=k.constants["FORMAT_V4_ROW"],
                      input_type=k.constants["F32"], output_type=k.constants["PACKED"], eps=1e-6, tokens=tokens,
                      values=values, gates=gates, ape=ape, prev_values=state[0], prev_gates=state[1],
                      open_values=state[2], open_gates=state[3], norm_weight=weight, frequencies=frequencies,
                      entry_capacity=rows,
                      packed={"codes": packed, "code_stride_bytes": 584, "rope": packed.data_ptr() + nope,
                              "rope_stride_bytes": 584, "scales": packed.data_ptr() + nope + 2 * rope,
                              "scale_stride_bytes": 584})
    positions = torch.arange(rows, dtype=torch.float32) * ratio
    no_gates = torch.full((1, ratio, width), float("-inf"))
    no_values = torch.zeros(1, ratio, width)

    def theirs():
        gate = gates.view(rows, ratio, channels) + ape
        value = values.view(rows, ratio, channels)
        gate = torch.cat([torch.cat([no_gates, gate[:-1, :, :width]]), gate[:, :, width:]], 1)
        value = torch.cat([torch.cat([no_values, value[:-1, :, :width]]), value[:, :, width:]], 1)
        row = (torch.softmax(gate, 1) * value).sum(1).bfloat16().float()
        row = (row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-6) * weight).bfloat16().float()
        angle = positions[:, None] * frequencies
        cos, sin = angle.cos(), angle.sin()
        even, odd = row[:, nope::2], row[:, nope + 1::2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1).bfloat16()
        blocks = row[:, :nope].view(rows, nope // 64, 64)
        scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448)))
        return (blocks / scale).to(torch.float8_e4m3fn), scale, turned

    ours()
    codes, scale, turned = theirs()
    got_scale = torch.exp2(packed[:, nope + 2 * rope:nope + 2 * rope + nope // 64].float() - 127)[..., None]
    got = packed[:, :nope].contiguous().view(torch.float8_e4m3fn).view(codes.shape).float() * got_scale
    # One step of bf16 before quantising may move a value by one step of E4M3, 1/8 of it.
    apart = (got - codes.float() * scale).abs() > 0.13 * got.abs() + 0.01 * scale
    must(apart.float().mean() < 1e-3, f"{int(apart.sum())} codes")
    got_rope = packed[:, nope:nope + 2 * rope].contiguous().view(torch.bfloat16).float()
    must(((got_rope - turned.float()).abs() > 0.02 * got_rope.abs() + 0.02).float().mean() < 1e-3, "rotated channels")
    print_rivals("compressor", ">=3.0", ours, theirs)


def attention(k, heads=64, width=512, window=128, entries=65536, top=512):
    """One query over 128 window rows and 512 picked entries of bf16, with sinks."""
    position = 4 * entries
    queries = torch.randn(heads, width).bfloat16()
    near = torch.randn(window, width).bfloat16()
    far = torch.randn(entries, width).bfloat16()
    picks = torch.randperm(entries)[:top].sort().values
    picks32 = picks.int()
    sinks = torch.randn(heads)
    output = torch.empty(heads, width, dtype=torch.bfloat16)
    bf16 = k.constants["BF16"]
    ours = k.attention(profile=k.constants["PROFILE_Q"], heads=heads, width=width, window=window, ratio=4,
                       pick_count=top, tokens=1, first_position=position, queries=queries, query_type=bf16,
                       window_kv=near, window_type=bf16, window_first=position - window + 1, window_rows=window,
                       entries=far, entry_type=bf16, entry_count=entries, picks=picks32, sinks=sinks, output=output,
                       output_type=bf16)

    def theirs():
        kv = torch.cat([near, far[picks]])
        logits = (queries @ kv.T).float() * width ** -0.5
        weights = torch.softmax(torch.cat([logits, sinks[:, None]], 1), 1)[:, :-1]
        return weights.bfloat16() @ kv

    ours()
    expected = theirs().float()
    # torch rounds the logits to bf16: an error of 2^-9 of logits of a few units.
    error = (output.float() - expected).abs().max() / expected.abs().max()
    must(error < 0.03, f"largest error {error:.4f} of the largest output")
    print_rivals("attention", ">=3.0", ours, theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--level", default="AUTO", help="AUTO, CPU_AVX2, ...: KVSTRATA_KERNELS_LEVEL_*")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    k = Kernels(arguments.library.resolve(), ROOT / "include" / "kvstrata" / "kernels.h", arguments.level)
    print(f"torch {torch.__version__}, kernels {k.name}")
    with torch.no_grad():
        indexer(k)
        compressor(k)
        attention(k)


if __name__ == "__main__":
    main()
