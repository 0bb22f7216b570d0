# SPDX-License-Identifier: Apache-2.0
"""Makes the golden vectors of numeric profile F (no quantisation, float32) from transformers' DeepSeek-V4 classes.

Owns: the model configurations, the runs, and the checks that transformers agrees with itself before a byte is
written. See README.md for what each file holds. One thread, eager attention, evaluation mode; all weights and inputs
come from the integer hash of vector_file.py, so the result depends on no random generator.

Agreement means |a - b| <= 1e-5 * max(1, |b|), between runs of the whole model twice that.
"""

import argparse
import io
import math
import pathlib

import numpy as np
import torch
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

from vector_file import VectorFile, generated

SEED = 20260
TOLERANCE = 1e-5
# Whole model, runs against each other: the inputs of the later layers already differ by 5e-6, and a gate projection of
# 64 inputs with weights of 0.29 (root mean square) may stretch that by sqrt(64) * 0.29 = 2.3.
MODEL_TOLERANCE = 2e-5
# Below this distance of the K-th and (K+1)-th score a selection is not decided: both sides may differ by 1e-5 times
# a score of a few units, and equal scores (every head negative gives exactly 0) have no defined order in torch.topk.
DECIDED_GAP = 1e-4
SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"


def rope_parameters(partial, original_length):
    main = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": partial}
    compress = {
        "rope_type": "yarn", "rope_theta": 160000.0, "partial_rotary_factor": partial, "factor": 16.0,
        "original_max_position_embeddings": original_length, "beta_fast": 32.0, "beta_slow": 1.0,
        "attention_factor": 1.0,
    }  # fmt: skip
    return {"main": main, "compress": compress}


def config_a(top_k, max_positions=256):
    """The general shape, small enough to store whole: every boundary is crossed within 33 tokens."""
    return DeepseekV4Config(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=1, head_dim=32, q_lora_rank=32, o_groups=2,
        o_lora_rank=16, sliding_window=8, compress_rates={CSA: 4, HCA: 16}, index_n_heads=2, index_head_dim=16,
        index_topk=top_k, num_hidden_layers=4, layer_types=[SLIDING, CSA, HCA, CSA], mlp_layer_types=["moe"] * 4,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, hc_mult=2, hc_sinkhorn_iters=3,
        max_position_embeddings=max_positions, vocab_size=64, partial_rotary_factor=8 / 32,
        rope_parameters=rope_parameters(8 / 32, 64), attn_implementation="eager",
    )  # fmt: skip


def config_b():
    """The released attention widths, window and ratios; hidden size and ranks cut down."""
    return DeepseekV4Config(
        hidden_size=256, num_attention_heads=2, num_key_value_heads=1, head_dim=512, q_lora_rank=64, o_groups=2,
        o_lora_rank=32, sliding_window=128, compress_rates={CSA: 4, HCA: 128}, index_n_heads=4, index_head_dim=128,
        index_topk=8, num_hidden_layers=3, layer_types=[SLIDING, CSA, HCA], mlp_layer_types=["moe"] * 3,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, hc_mult=2, hc_sinkhorn_iters=3,
        max_position_embeddings=4096, vocab_size=64, partial_rotary_factor=64 / 512,
        rope_parameters=rope_parameters(64 / 512, 65536), attn_implementation="eager",
    )  # fmt: skip


def scale_and_offset(name, shape):
    """Spread of a generated weight, a power of two near 1/sqrt(fan-in) so that activations stay near 1.

    Gates and position biases are given a wide spread: a nearly uniform softmax would hide a wrong position bias.
    Norm weights are not 1 and sinks not 0 for the same reason.
    """
    if "norm.weight" in name:
        return 0.5, 1.0
    if name.endswith(("sinks", "position_bias")):
        return 2.0, 0.0
    if name.endswith(("_hc.base", "hc_base", "_hc.scale", "hc_scale")):
        return 0.5, 0.0
    if name.endswith("embed_tokens.weight"):
        return 1.0, 0.0
    near = 2.0 ** round(math.log2(math.sqrt(3.0 / shape[-1])))
    return (2.0 * near if "compressor" in name and "gate_proj" in name else near), 0.0


class Model:
    """A transformers model whose parameters are generated, and the taps that record what attention computes."""

    def __init__(self, config):
        self.config = config
        self.lm = hf.DeepseekV4ForCausalLM(config).eval().float()
        self.model = self.lm.model
        self.weights = {}  # name -> (shape, scale, offset)
        with torch.no_grad():
            for name, parameter in self.lm.named_parameters():
                shape = tuple(parameter.shape)
                scale, offset = scale_and_offset(name, shape)
                self.weights[name] = (shape, scale, offset)
                parameter.copy_(torch.from_numpy(generated(name, shape, scale, offset, SEED)))
        self.taps = {}
        for index, layer in enumerate(self.model.layers):
            self._tap_layer(index, layer.self_attn)

    def keep(self, index, name, value):
        self.taps.setdefault(f"layers.{index}.{name}", []).append(value.detach().numpy().copy())

    def _tap_layer(self, index, attention):
        attention.golden_owner = self
        heads, width = attention.num_heads, attention.head_dim
        attention.q_a_proj.register_forward_pre_hook(lambda m, a: self.keep(index, "hidden", a[0][0]))
        attention.q_a_norm.register_forward_hook(lambda m, a, y: self.keep(index, "q_latent", y[0]))
        # Grouped as [tokens][groups][heads of the group x width], which in memory is [tokens][heads][width].
        attention.o_a_proj.register_forward_pre_hook(
            lambda m, a: self.keep(index, "attention_unrotated", a[0][0].reshape(-1, heads, width)))
        attention.o_a_proj.register_forward_hook(lambda m, a, y: self.keep(index, "o_a", y[0].flatten(1)))
        attention.o_b_proj.register_forward_hook(lambda m, a, y: self.keep(index, "output", y[0]))
        if attention.layer_type == CSA:
            indexer = attention.compressor.indexer
            indexer.scorer.register_forward_hook(lambda m, a, y: self.keep(index, "scores", y[0]))
            indexer.register_forward_hook(lambda m, a, y: self.keep(index, "top_k", y[0].to(torch.int32)))
            attention.compressor.register_forward_hook(lambda m, a, y: self._check_bias(index, y[1]))

    def _check_bias(self, index, bias):
        """The bias that the attention gets says nothing but the selection, so only the selection is stored."""
        for row, chosen in zip(bias[0, 0].numpy(), self.taps[f"layers.{index}.top_k"][-1]):
            assert set(np.flatnonzero(row == 0)) == set(chosen[chosen >= 0])

    def new_cache(self):
        return TappedCache(self.config, self)

    def inputs(self, length):
        shape = (length, self.config.hidden_size)
        return [torch.from_numpy(generated(f"layers.{i}.hidden", shape, 2.0, 0.0, SEED))
                for i in range(self.config.num_hidden_layers)]

    def step_layers(self, inputs, position, size, cache):
        """One call of every layer's attention, each on its own synthetic input."""
        positions = torch.arange(position, position + size)[None]
        slices = [x[None, position:position + size] for x in inputs]
        mask = create_sliding_window_causal_mask(config=self.config, inputs_embeds=slices[0], attention_mask=None,
                                                 cache=cache, position_ids=positions)
        tables = {kind: self.model.rotary_emb(slices[0], position_ids=positions, layer_type=kind)
                  for kind in ("main", "compress")}
        for layer, x in zip(self.model.layers, slices):
            layer.self_attn(x, position_embeddings=tables, position_ids=positions, attention_mask=mask, cache=cache)

    def step_model(self, tokens, position, size, cache):
        """One call of the whole model."""
        out = self.lm(input_ids=tokens[None, position:position + size], cache=cache, use_cache=True)
        self.taps["logits"] = [out.logits[0].numpy().copy()]

    def run(self, step, inputs, chunks, cache=None):
        """Feeds `inputs` in calls of the sizes `chunks`; returns the cache and what the taps saw, chunks joined."""
        cache = cache or self.new_cache()
        taps, position = {}, cache.get_seq_length()
        for size in chunks:
            self.taps = {}
            with torch.no_grad():
                step(inputs, position, size, cache)
            for name, parts in self.taps.items():
                taps.setdefault(name, []).extend(parts)
            position += size
        return cache, {name: join_rows(name, parts) for name, parts in taps.items()}


def join_rows(name, parts):
    """Chunks to one array. Scores and picks grow with the entries: short rows are padded with "not visible"."""
    width = max(part.shape[-1] for part in parts)
    fill = -1 if name.endswith("top_k") else 0
    return np.concatenate([np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])],
                                  constant_values=fill) for part in parts])


class TappedCache(DynamicCache):
    """A cache that shows the window rows a call brings: they pass through update() after norm and rotation."""

    def __init__(self, config, owner):
        super().__init__(config=config)
        self.owner = owner

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        self.owner.keep(layer_idx, "kv", key_states[0, 0])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def tap_core_attention():
    """Has the module's eager attention record its queries and its result before the inverse rotation."""
    plain = hf.eager_attention_forward

    def tapped(module, query, *args, **kwargs):
        output, weights = plain(module, query, *args, **kwargs)
        module.golden_owner.keep(module.layer_idx, "q", query[0].transpose(0, 1))
        module.golden_owner.keep(module.layer_idx, "attention", output[0])
        return output, weights

    hf.eager_attention_forward = tapped


# ------------------------------------------------------------------------------------------------- cache as bytes


def cache_state(cache):
    """Everything a cache holds, as arrays without the batch dimension, by layer and name."""
    state = {}
    for index, layer in enumerate(cache.layers):
        prefix = f"layers.{index}."
        state[prefix + "window"] = layer.keys[0, 0]
        state[prefix + "cumulative_length"] = torch.tensor([layer.cumulative_length], dtype=torch.int32)
        for store in ("compressed_kv", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate"):
            for name, value in getattr(layer, store, {}).items():
                if value is not None:
                    state[f"{prefix}{name}.{store}"] = value[0]
        for name, count in getattr(layer, "entry_count", {}).items():
            state[f"{prefix}{name}.entry_count"] = torch.tensor([count], dtype=torch.int32)
    return {name: value.detach().numpy().copy() for name, value in state.items()}


def save_cache(cache):
    buffer = io.BytesIO()
    np.savez(buffer, **cache_state(cache))
    return buffer.getvalue()


def load_cache(model, data, drop=()):
    """A new cache from the bytes of save_cache; `drop` names stores that are left out, for negative controls."""
    state = np.load(io.BytesIO(data))
    cache = model.new_cache()
    for name in state.files:
        _, index, *rest = name.split(".")
        layer, value = cache.layers[int(index)], torch.from_numpy(state[name].copy())
        if rest == ["window"]:
            layer.lazy_initialization(value, value)
            layer.keys = layer.values = value[None, None]
        elif rest == ["cumulative_length"]:
            layer.cumulative_length = int(value)
        elif rest[1] == "entry_count":
            layer.entry_count[rest[0]] = int(value)
        elif rest[1] not in drop:
            getattr(layer, rest[1])[rest[0]] = value[None]
    return cache


# ------------------------------------------------------------------------------------------------------ agreement


def selection_gaps(config, seen, index, first=0):
    """Per query: K-th score minus (K+1)-th of the visible entries; 1e30 where all visible ones are taken."""
    scores, gaps = seen[f"layers.{index}.scores"], []
    for row, values in enumerate(scores):
        ranked = np.sort(values[:(first + row + 1) // config.compress_rates[CSA]])[::-1]
        gaps.append(ranked[config.index_topk - 1] - ranked[config.index_topk] if len(ranked) > config.index_topk
                    else 1e30)
    return np.array(gaps, dtype=np.float32)


def close(a, b, tolerance=TOLERANCE):
    return np.abs(a.astype(np.float64) - b) <= tolerance * np.maximum(1.0, np.abs(b))


AFTER_SELECTION = ("attention", "attention_unrotated", "o_a", "output")


def require_same_run(model, seen, truth, gaps, tolerance, first=0):
    """`seen` holds positions first.. of what `truth` holds from 0; rows with an undecided selection may differ."""
    for name, values in seen.items():
        rows = slice(first, first + len(values))
        want = truth[name][rows]
        index, kind = (name.split(".")[1], name.split(".")[2]) if "." in name else (None, name)
        decided = gaps[int(index)][rows] > DECIDED_GAP if index and int(index) in gaps else np.full(len(values), True)
        if kind == "top_k":
            for got, expected, sure in zip(values, want, decided):
                assert not sure or set(got[got >= 0]) == set(expected[expected >= 0]), name
        elif kind == "scores":
            for row, (got, expected) in enumerate(zip(values, want)):
                visible = (first + row + 1) // model.config.compress_rates[CSA]
                assert close(got[:visible], expected[:visible], tolerance).all(), name
        else:
            same = close(values, want, tolerance).reshape(len(values), -1).all(axis=1)
            assert (same | ~decided if kind in AFTER_SELECTION else same).all(), (name, np.flatnonzero(~same))


def require_same_state(state, truth, tolerance):
    assert state.keys() == truth.keys()
    for name, values in state.items():
        assert values.shape == truth[name].shape and close(values, truth[name], tolerance).all(), name


def chunkings(length):
    """The cuts (b): ones; 3, 5, 3, 5, ...; all but one, then one."""
    yield [1] * length
    sizes, left = [], length
    while left:
        sizes.append(min(left, 5 if len(sizes) % 2 else 3))
        left -= sizes[-1]
    yield sizes
    if length > 1:
        yield [length - 1, 1]


def run_all(model, step, inputs, lengths, tolerance=TOLERANCE):
    """Runs (a), (b), (c) for every length, requires that they agree; returns the longest run and the state at each."""
    longest = max(lengths)
    _, truth = model.run(step, inputs, [longest])
    gaps = {i: selection_gaps(model.config, truth, i)
            for i, kind in enumerate(model.config.layer_types) if kind == CSA}
    states, saved = {}, {}
    for length in lengths:
        cache, seen = model.run(step, inputs, [length])
        require_same_run(model, seen, truth, gaps, tolerance)
        states[length], saved[length] = cache_state(cache), save_cache(cache)
        for chunks in chunkings(length):
            cache, seen = model.run(step, inputs, chunks)
            require_same_run(model, seen, truth, gaps, tolerance)
            require_same_state(cache_state(cache), states[length], tolerance)
        for start in (p for p in lengths if p < length):
            cache, seen = model.run(step, inputs, [length - start], load_cache(model, saved[start]))
            require_same_run(model, seen, truth, gaps, tolerance, start)
            require_same_state(cache_state(cache), states[length], tolerance)
    return truth, states, gaps, saved


def require_overlap_matters(model, inputs, saved, states, start, end):
    """Negative control: without the overlap exactly one entry and one index key are wrong, the first emitted."""
    cache, _ = model.run(model.step_layers, inputs, [end - start],
                         load_cache(model, saved[start], drop=("overlap_kv", "overlap_gate")))
    broken = cache_state(cache)
    for index, kind in enumerate(model.config.layer_types):
        for name in ("compressor", "indexer") if kind == CSA else ():
            key = f"layers.{index}.{name}.compressed_kv"
            wrong = np.flatnonzero(~close(broken[key], states[end][key]).all(axis=1))
            assert wrong.tolist() == [start // model.config.compress_rates[CSA]], (key, wrong)


# ---------------------------------------------------------------------------------------------------------- files


def put_config(out, model):
    config = model.config
    for name, value in {
        "hidden": config.hidden_size, "heads": config.num_attention_heads, "width": config.head_dim,
        "rope_dims": config.qk_rope_head_dim, "q_rank": config.q_lora_rank, "o_groups": config.o_groups,
        "o_rank": config.o_lora_rank, "window": config.sliding_window, "csa_ratio": config.compress_rates[CSA],
        "hca_ratio": config.compress_rates[HCA], "index_heads": config.index_n_heads,
        "index_width": config.index_head_dim, "top_k": config.index_topk, "layers": config.num_hidden_layers,
        "original_length": config.rope_parameters["compress"]["original_max_position_embeddings"],
    }.items():  # fmt: skip
        out.scalar("config." + name, value)
    kinds = {SLIDING: 0, CSA: 1, HCA: 2}
    out.tensor("config.layer_kinds", np.array([kinds[t] for t in config.layer_types], dtype=np.int32))
    out.tensor("config.frequencies.main", model.model.rotary_emb.main_inv_freq.numpy())
    out.tensor("config.frequencies.compress", model.model.rotary_emb.compress_inv_freq.numpy())
    out.tensor("config.decided_gap", np.array([DECIDED_GAP], dtype=np.float32))


def put_weights(out, model):
    for name, (shape, scale, offset) in model.weights.items():
        if ".self_attn." in name:
            out.generated(name, shape, scale, offset)


def put_run(out, model, truth, states, gaps, stride, score_stride, layers):
    """What the longest run computed per token, then the cache at every length."""
    for name, values in truth.items():
        if "." not in name or int(name.split(".")[1]) not in layers:
            continue
        kind = name.split(".")[2]
        if kind == "hidden":
            continue
        whole = kind == "top_k"
        out.tensor("run." + name, values, 1 if whole else score_stride if kind == "scores" else stride)
    for index, values in gaps.items():
        if index in layers:
            out.tensor(f"run.layers.{index}.top_k_gap", values)
    out.tensor("lengths", np.array(sorted(states), dtype=np.int32))
    for length, state in states.items():
        for name, values in state.items():
            if int(name.split(".")[1]) in layers:
                out.tensor(f"state.{length}.{name}", values, 1 if values.dtype.kind == "i" else stride)


def put_synthetic_inputs(out, model, length):
    for index in range(model.config.num_hidden_layers):
        out.generated(f"layers.{index}.hidden", (length, model.config.hidden_size), 2.0, 0.0)


def put_generator_check(out):
    """Lets the reader prove that it makes the same numbers."""
    out.tensor("check.values", out.generated("check.generated", (257,), 0.5, 1.0))


def make_layers(model, lengths, stride=1, score_stride=1, layers=None, overlap_check=None):
    inputs = model.inputs(max(lengths))
    truth, states, gaps, saved = run_all(model, model.step_layers, inputs, lengths)
    if overlap_check:
        require_overlap_matters(model, inputs, saved, states, *overlap_check)
    for index, values in gaps.items():
        print(f"  layer {index}: {np.mean(values > DECIDED_GAP):.1%} of the selections are decided")
    out = VectorFile(SEED)
    put_generator_check(out)
    put_config(out, model)
    put_weights(out, model)
    put_synthetic_inputs(out, model, max(lengths))
    put_run(out, model, truth, states, gaps, stride, score_stride, layers or range(model.config.num_hidden_layers))
    return out


def make_model(model, lengths):
    """The whole model: the inputs of each layer are what the model made them, so they are stored."""
    tokens = torch.from_numpy(generated("tokens", (max(lengths),), 32.0, 32.0, SEED).astype(np.int64))
    truth, states, gaps, _ = run_all(model, model.step_model, tokens, lengths, MODEL_TOLERANCE)
    states = {max(lengths): states[max(lengths)]}
    out = VectorFile(SEED)
    put_config(out, model)
    put_weights(out, model)
    for index in range(model.config.num_hidden_layers):
        out.tensor(f"layers.{index}.hidden", truth[f"layers.{index}.hidden"])
    put_run(out, model, truth, states, gaps, 1, 1, range(model.config.num_hidden_layers))
    return out


A_LENGTHS = [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33]
B_LENGTHS = [1, 3, 4, 5, 7, 8, 9, 127, 128, 129, 255, 256, 257]
LONG_LENGTHS = [2050, 4099]

FILES = {
    "a_all.kvg": lambda: make_layers(Model(config_a(64)), A_LENGTHS, overlap_check=(16, 33)),
    "a_select.kvg": lambda: make_layers(Model(config_a(2)), A_LENGTHS, layers=(1, 3)),
    "a_model.kvg": lambda: make_model(Model(config_a(64)), A_LENGTHS),
    "a_long.kvg": lambda: make_layers(Model(config_a(2, 8192)), LONG_LENGTHS, 101, 1009, (0, 1, 2)),
    "b_widths.kvg": lambda: make_layers(Model(config_b()), B_LENGTHS, 23, overlap_check=(128, 257)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "vectors")
    parser.add_argument("--only", nargs="*", default=list(FILES), choices=list(FILES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tap_core_attention()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        print(name, flush=True)
        print(f"  {FILES[name]().write(arguments.out / name)} bytes")


if __name__ == "__main__":
    main()
