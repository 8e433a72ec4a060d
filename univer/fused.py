"""`verify_logits` on a GPU for the `ot` rule: a few kernels, one host synchronisation.

The plain path, `univer.from_logits.by_level`, is the oracle and takes what `applies` refuses. Bytes
that move, for B trees with I inner nodes and logits of w bytes: every inner node's target and draft
row is read from memory once for its largest logit and its sum, 2 B I V w, and once more for the
surplus [s p - q']+, which needs both sums and the scale that the level above gives; this second
read is served by the L2 cache as long as the rows fit (2x5, V = 128,256, float32: 62 rows, 31.8 MB;
an H200 has 50 MB). The stop node's rows and its V weights are 3 rows more a tree. The floor at
4.8 TB/s is then 6.6 us for one 2x5 tree from float32 and half of that from bfloat16, and twice as
much a tree for batches beyond the cache; a softmax of the same rows reads and writes as much. What
a single tree really pays is two launches a level (one level in all for a local composition).

Sums are float32 within a block: a node's masses and with them the stop law are off by some 1e-7.
The ratio of what is left where two laws almost agree may be off by more, but is needed as rarely.

Letters: B trees, N nodes, I inner nodes, V vocabulary, D depth, m arity, K blocks a row.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from univer.drafting import DraftTree, check_tokens
from univer.errors import (
    check_exactly_one,
    check_rows_shape,
    check_uniforms,
)
from univer.indices import Indices, indices
from univer.sampling import take_uniforms
from univer.topology import Topology
from univer.tree_rows import check_inner_logits, check_stop_logits
from univer.verifiers import Verifier, VerifyOutput

MOST_TREES = 65_535  # programs along a grid's later axes
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float64 asks for float64 answers
BLOCK = 4096  # tokens a program: 32 blocks a row of 128,256, about 1,000 programs a 2x5 tree
OPTIONS = {
    "num_warps": 8,
    # Without it two kernels may round one expression differently: a residual that one of them finds
    # positive must not be 0 in the one that draws from it.
    "enable_fp_fusion": False,
}


def runs_kernels(device: torch.device) -> bool:
    """Whether Triton is there for this device (under TRITON_INTERPRET=1 the CPU will do)."""
    here = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return here and find_spec("triton") is not None


def applies(
    verifier: Verifier,
    tree: DraftTree,
    target_logits: Tensor,
    draft_logits: Tensor,
    temperature: float,
) -> bool:
    """Whether `verify_logits_fused` can answer; it never waits for the device to say so.

    It may be asked before any check: what is no tree or no tensor is left to the plain path.
    """
    return (
        verifier.allocation == "ot"
        and verifier.composition in ("local", "conditional")
        and temperature > 0
        and isinstance(tree, DraftTree)
        and len(tree.topology.internal) > 0
        and len(tree.tokens) <= MOST_TREES
        and all(getattr(rows, "dtype", None) in DTYPES for rows in (target_logits, draft_logits))
        and runs_kernels(tree.tokens.device)
    )


@dataclass(frozen=True)
class Tables:
    """One topology's tables for the kernels.

    slots: [I, m], an inner node's child slots: the -1 as padding first, the sampled one in the
        last column.
    row_of: [N], the row of an inner node, -1 for a leaf.
    levels: the rows of each depth; everything: all rows.
    """

    shared: Indices
    slots: Tensor
    row_of: Tensor
    levels: tuple[Tensor, ...]
    everything: Tensor


@lru_cache(maxsize=64)
def tables(topology: Topology, device: torch.device) -> Tables:
    """The tables of a topology on a device."""
    shared = indices(topology, device)
    depths: dict[int, list[int]] = {}
    for node, row in topology.draft_rows.items():
        depths.setdefault(topology.depths[node], []).append(row)
    with torch.inference_mode(False):

        def tensor(values: Any) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return Tables(
            shared,
            shared.slots.index_select(0, shared.internal.ids),
            tensor([topology.draft_rows.get(v, -1) for v in range(topology.num_nodes)]),
            tuple(tensor(rows) for _, rows in sorted(depths.items())),
            tensor(range(len(topology.internal))),
        )


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _exponent(temperature: float) -> float:
    """The kernels' k, to float32: the same number in every kernel and for both laws."""
    # Outside these bounds a law is one-hot or uniform in float32 as well.
    return float(np.float32(math.log2(math.e) / min(max(temperature, 1e-30), 1e30)))


def _launch(kernel: Any, grid: tuple[int, ...], values: Mapping[str, Any]) -> None:
    """Launch a kernel on what its arguments name."""
    kernel[grid](**{name: values[name] for name in kernel.arg_names}, **OPTIONS)


def allocate(
    verifier: Verifier, tree: DraftTree, target: Tensor, draft: Tensor, temperature: float
) -> dict[str, Any]:
    """Judge every inner node, level by level: the arguments of the kernels by name, filled in.

    Among them `acceptance` [B, N], as in `univer.composition`, and `flag` [1], 1 if input is bad.
    Neither this nor `decide` waits for the device: a CUDA graph can hold both.
    """
    from univer import kernels  # Triton is there only if `applies` says so

    topology, tokens = tree.topology, tree.tokens.contiguous()
    target, draft = (x if x.stride(-1) == 1 else x.contiguous() for x in (target, draft))
    (batch, nodes), vocab, device = tokens.shape, target.shape[-1], tokens.device
    table = tables(topology, device)
    inner, arity = table.slots.shape
    count = math.ceil(vocab / BLOCK)
    single, double = (
        partial(torch.empty, dtype=dtype, device=device) for dtype in (torch.float32, torch.float64)
    )
    values = {
        "target": target, "target_tree": target.stride(0), "target_node": target.stride(1),
        "draft": draft, "draft_tree": draft.stride(0), "draft_node": draft.stride(1),
        "tokens": tokens, "k": _exponent(temperature),
        "inner": table.shared.internal.ids, "slots": table.slots, "row_of": table.row_of,
        "order": table.shared.post_order.ids,
        "paths": table.shared.paths, "depths": table.shared.depths,
        "V": vocab, "N": nodes, "I": inner, "K": count, "M": arity,
        "SLOTS": _power_of_two(arity), "NODES": _power_of_two(nodes + 1),
        "BLOCK": BLOCK, "BLOCKS": _power_of_two(count),
        "DEPTH": topology.depth, "STEPS": _power_of_two(topology.depth + 1),
        "CONDITIONAL": verifier.composition == "conditional",
        "flag": torch.zeros(1, dtype=torch.int32, device=device),
        "parts": single(batch, inner, 5, count),
        "rows": double(batch, inner, 4),
        "sums": single(batch, inner, count),
        "residual_mass": double(batch, inner),
        "scale": torch.ones_like(tokens, dtype=torch.float64),
        "acceptance": torch.zeros_like(tokens, dtype=torch.float64),  # of absent nodes it stays 0
    }  # fmt: skip
    _launch(kernels.scan_rows, (count, inner, batch), values)
    _launch(kernels.combine_rows, (inner, batch), values)
    for level in table.levels if values["CONDITIONAL"] else (table.everything,):
        values["level"] = level
        _launch(kernels.sum_residual, (count, len(level), batch), values)
        _launch(kernels.settle, (len(level), batch), values)
    return values


def decide(values: dict[str, Any], uniforms: Tensor) -> tuple[VerifyOutput, Tensor]:
    """From what `allocate` returns and uniforms [B, N + 1]: the decision, the stop nodes [B]."""
    from univer import kernels

    batch, device = len(uniforms), uniforms.device
    vocab, count, depth = (values[name] for name in ("V", "K", "DEPTH"))
    integers = partial(torch.empty, dtype=torch.int64, device=device)
    values = values | {
        "uniforms": uniforms.contiguous(),
        "stop": integers(batch),
        "weights": torch.empty(batch, vocab, dtype=torch.float32, device=device),
        "sums": torch.empty(batch, count, dtype=torch.float64, device=device),
        "shifts": torch.empty(batch, count, dtype=torch.float32, device=device),
        "accepted_nodes": integers(batch, depth),
        "num_accepted": integers(batch),
        "next_token": integers(batch),
        "emitted": integers(batch, depth + 1),
    }
    _launch(kernels.decide, (batch,), values)
    _launch(kernels.weigh, (count, batch), values)
    _launch(kernels.draw, (batch,), values)
    names = ("accepted_nodes", "num_accepted", "next_token", "emitted")
    return VerifyOutput(*(values[name] for name in names)), values["stop"]


@torch.no_grad()
def verify_logits_fused(
    verifier: Verifier,
    tree: DraftTree,
    target_logits: Tensor,
    draft_logits: Tensor,
    *,
    temperature: float = 1.0,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> VerifyOutput | None:
    """`verify_logits` where `applies` says so: same arguments, same answer, same sentences.

    None where a draft is so peaked that what is left of it is at the end of float32: there the law
    that was drawn from has a rounding of its own, which only the plain path follows. The one wait
    for the device is for the flag that says so, or that what was read is bad.
    """
    topology, tokens = tree.topology, tree.tokens
    batch, nodes = tokens.shape
    device, shape = tokens.device, (batch, nodes + 1)
    vocab = check_rows_shape("target_logits", target_logits, batch, nodes, None, device)
    inner = len(topology.internal)
    check_rows_shape("draft_logits", draft_logits, batch, inner, vocab, device)
    check_exactly_one("uniforms", uniforms, "generator", generator)
    if not (
        isinstance(uniforms, Tensor)
        and (uniforms.dtype, uniforms.shape, uniforms.device) == (torch.float64, shape, device)
    ):
        uniforms = take_uniforms(uniforms, generator, shape, device)
    with torch.cuda.device_of(tokens):  # kernels start on the current device
        values = allocate(verifier, tree, target_logits, draft_logits, temperature)
        output, stop = decide(values, uniforms)
    if values["flag"].item():
        _explain(tree, target_logits, draft_logits, uniforms, stop)
        return None
    return output


def _explain(
    tree: DraftTree, target_logits: Tensor, draft_logits: Tensor, uniforms: Tensor, stop: Tensor
) -> None:
    """Raise the error of the input that the kernels found bad, if it is that."""
    check_tokens(tree.topology, tree.tokens, target_logits.shape[-1])
    check_inner_logits(tree, target_logits, draft_logits)
    check_uniforms("uniforms", uniforms, tuple(uniforms.shape), tree.tokens.device)
    check_stop_logits(target_logits, stop)
