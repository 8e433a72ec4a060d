"""Triton kernels of the `ot` rule: one tree verified from logits without leaving the device.

`univer.fused` launches them in this order; its docstring has the bytes that move.

| kernel | a program | does |
|---|---|---|
| `scan_rows` | block of an inner node's two rows | largest logit, sum of exponentials |
| `combine_rows` | inner node | the same of whole rows; checks rows and tokens |
| `sum_residual` | block of an inner node | residual mass of the block |
| `settle` | inner node | Z, child masses, acceptance; the scale of the children |
| `decide` | tree | the node at which the cycle stops |
| `weigh` | block of the stop node's row | weights of the next token |
| `draw` | tree | the next token and the emitted tokens |

| paper | name | meaning |
|---|---|---|
| p~_v | scale s | acceptance of the node's own prefix |
| M_b, M_s | p, q | target and draft law; here their logits |
| M_s^not | q' | draft law over what is left without the fixed children |
| Z, f | whole, factor | Eqs. 3-7, as in `univer.allocation` |

Exponentials are powers of 2 of (logit - shift) k with k = log2(e) / temperature. The draft's shift
is its largest logit *without the fixed children*, so what is left never underflows, however peaked
the draft. A block is summed in float32 (a tree of halves), blocks in float64, each in one order:
no atomics, nothing depends on the batch. A child's slot is in its node's row of `slots`: the fixed
ones first, -1 as padding, the sampled one in the last column. Rows of absent nodes are not read.
`flag` becomes 1 where input is bad or a draft too peaked for float32; what follows then means
nothing, but reads only what is there.

Letters: B trees, N nodes, I inner nodes, V vocabulary, D depth, m arity, K blocks a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))
# A row's four numbers in `rows` [B, I, 4].
TARGET_SHIFT, TARGET_SUM = tl.constexpr(0), tl.constexpr(1)
DRAFT_SHIFT, DRAFT_SUM = tl.constexpr(2), tl.constexpr(3)
PEAKED = tl.constexpr(90.0)  # bits that a draft's best token may be above the best that is left


@triton.jit
def _logits(row, ids, V):
    """The logits at these ids; -inf beyond the vocabulary, +inf for NaN: a maximum shows it."""
    x = tl.load(row + ids, mask=ids < V, other=-INFINITY).to(tl.float32)
    return tl.where(x == x, x, INFINITY)


@triton.jit
def _shift(peak):
    """The largest logit, or 0 where it is infinite: inf - inf is never formed."""
    return tl.where(tl.abs(peak) == INFINITY, 0.0, peak)


@triton.jit
def _absent(tokens, tree, node, N):
    """Whether a node is absent; the root never is."""
    return (node > 0) & (tl.load(tokens + tree * N + node) < 0)


@triton.jit
def _without(x, ids, tokens, slots, FIRST: tl.constexpr, LAST: tl.constexpr):
    """The logits with those of the children in columns FIRST to LAST - 1 set to -inf."""
    for j in tl.static_range(FIRST, LAST):
        slot = tl.load(slots + j)
        token = tl.load(tokens + slot, mask=slot >= 0, other=-1)
        x = tl.where(ids == token, -INFINITY, x)
    return x


@triton.jit
def scan_rows(
    target, draft, tokens, inner, slots, parts, k, V, N, I, K,
    target_tree, target_node, draft_tree, draft_node, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill parts [B, I, 5, K]: target's peak and sum; draft's without fixed children; its peak."""
    block, tree = tl.program_id(0), tl.program_id(2).to(tl.int64)
    row = tl.program_id(1).to(tl.int64)
    node = tl.load(inner + row)
    if _absent(tokens, tree, node, N):
        return
    ids = block * BLOCK + tl.arange(0, BLOCK)
    p = _logits(target + tree * target_tree + node * target_node, ids, V)
    q = _logits(draft + tree * draft_tree + row * draft_node, ids, V)
    left = _without(q, ids, tokens + tree * N, slots + row * M, 0, M - 1)
    p_peak, q_peak = tl.max(p, 0), tl.max(left, 0)
    out = parts + (tree * I + row) * 5 * K + block
    tl.store(out, p_peak)
    tl.store(out + K, tl.sum(tl.exp2((p - _shift(p_peak)) * k), 0))
    tl.store(out + 2 * K, q_peak)
    tl.store(out + 3 * K, tl.sum(tl.exp2((left - _shift(q_peak)) * k), 0))
    tl.store(out + 4 * K, tl.max(q, 0))


@triton.jit
def _whole_row(parts, K, k, BLOCKS: tl.constexpr):
    """Peak of a row and its sum of exponentials over that peak, from those of its blocks."""
    i = tl.arange(0, BLOCKS)
    peaks = tl.load(parts + i, mask=i < K, other=-INFINITY)
    sums = tl.load(parts + K + i, mask=i < K, other=0.0).to(tl.float64)
    peak = tl.max(peaks, 0)
    return peak, tl.sum(tl.exp2((peaks - _shift(peak)) * k).to(tl.float64) * sums, 0)


@triton.jit
def combine_rows(
    tokens, inner, slots, parts, rows, flag, k, V, N, I, K,
    M: tl.constexpr, SLOTS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Fill rows [B, I, 4]: shift and sum of target, and of draft without the fixed children."""
    row, tree = tl.program_id(0), tl.program_id(1).to(tl.int64)
    node = tl.load(inner + row)
    # Tokens: in range, absent only at the end and below an absent node, siblings distinct.
    j = tl.arange(0, SLOTS)
    slot = tl.load(slots + row * M + j, mask=j < M, other=-1)
    child = tl.load(tokens + tree * N + slot, mask=slot >= 0, other=-1)
    own = tl.load(tokens + tree * N + node)
    absent = _absent(tokens, tree, node, N)
    later = (j[:, None] < j[None, :]) & (slot[:, None] >= 0) & (child[None, :] >= 0)
    wrong = later & ((child[:, None] < 0) | (child[:, None] == child[None, :]))
    strange = (child < -1) | (child >= V) | (absent & (child >= 0))
    bad = (tl.max(wrong.to(tl.int32)) > 0) | (tl.max(strange.to(tl.int32), 0) > 0)
    bad = bad | (own < -1) | (own >= V)
    tl.store(flag, 1, mask=bad)
    if absent:
        return
    here = parts + (tree * I + row) * 5 * K
    p_peak, p_sum = _whole_row(here, K, k, BLOCKS)
    q_peak, q_sum = _whole_row(here + 2 * K, K, k, BLOCKS)
    i = tl.arange(0, BLOCKS)
    top = tl.max(tl.load(here + 4 * K + i, mask=i < K, other=-INFINITY), 0)
    if tl.max(child, 0) < 0:  # nothing was drafted: the draft's row means nothing
        top, q_peak, q_sum = 0.0, -INFINITY, 0.0 * p_sum
    tl.store(flag, 1, mask=(tl.abs(p_peak) == INFINITY) | (tl.abs(top) == INFINITY))
    # What is left is close to the end of float32, where the drawn law is not this one any more.
    tl.store(flag, 1, mask=(q_peak > -INFINITY) & ((top - q_peak) * k > PEAKED))
    out = rows + (tree * I + row) * 4
    tl.store(out + TARGET_SHIFT, _shift(p_peak).to(tl.float64))
    tl.store(out + TARGET_SUM, p_sum)
    tl.store(out + DRAFT_SHIFT, _shift(q_peak).to(tl.float64))
    tl.store(out + DRAFT_SUM, q_sum)


@triton.jit
def _draft_factor(numbers, sampled):
    """What turns powers of 2 into q': 0 without a sampled child, or where nothing is left."""
    total = tl.load(numbers + DRAFT_SUM)
    some = (sampled >= 0) & (total > 0)
    return tl.where(some, 1 / tl.where(some, total, 1.0), 0.0)


@triton.jit
def _sampled(tokens, slots, M: tl.constexpr):
    """The token of the sampled child, -1 if it is absent."""
    return tl.load(tokens + tl.load(slots + M - 1))


@triton.jit
def _residual(target, draft, tokens, slots, numbers, scale, ids, k, V, M: tl.constexpr):
    """[s p - q']+ of the tokens that are not children, float32: Eq. 6 without its factor."""
    p = _without(_logits(target, ids, V), ids, tokens, slots, 0, M)
    q = _without(_logits(draft, ids, V), ids, tokens, slots, 0, M)
    p_factor = (scale / tl.load(numbers + TARGET_SUM)).to(tl.float32)
    q_factor = _draft_factor(numbers, _sampled(tokens, slots, M)).to(tl.float32)
    p_shift = tl.load(numbers + TARGET_SHIFT).to(tl.float32)
    q_shift = tl.load(numbers + DRAFT_SHIFT).to(tl.float32)
    kept = tl.exp2((p - p_shift) * k) * p_factor
    q = tl.where(q_factor > 0, q, -INFINITY)  # a row that nothing was drawn from may hold anything
    return tl.maximum(kept - tl.exp2((q - q_shift) * k) * q_factor, 0.0)


@triton.jit
def sum_residual(
    target, draft, tokens, level, inner, slots, rows, scale, sums, k, V, N, I, K,
    target_tree, target_node, draft_tree, draft_node, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill sums [B, I, K]: the residual mass of each block, without the factor."""
    block, tree = tl.program_id(0), tl.program_id(2).to(tl.int64)
    row = tl.load(level + tl.program_id(1))
    node = tl.load(inner + row)
    if _absent(tokens, tree, node, N):
        return
    residual = _residual(
        target + tree * target_tree + node * target_node,
        draft + tree * draft_tree + row * draft_node,
        tokens + tree * N, slots + row * M, rows + (tree * I + row) * 4,
        tl.load(scale + tree * N + node), block * BLOCK + tl.arange(0, BLOCK), k, V, M,
    )  # fmt: skip
    tl.store(sums + (tree * I + row) * K + block, tl.sum(residual, 0))


@triton.jit
def _ratio(numerator, denominator):
    """Quotient of numbers >= 0 of which the first is the smaller one; 0/0 = 0."""
    return tl.where(denominator > 0, numerator / tl.where(denominator > 0, denominator, 1.0), 0.0)


@triton.jit
def settle(
    target, draft, tokens, level, inner, slots, rows, scale, sums, acceptance, residual_mass,
    k, V, N, I, K, target_tree, target_node, draft_tree, draft_node,
    CONDITIONAL: tl.constexpr, M: tl.constexpr, SLOTS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Eqs. 3-7 of one node, then SPEC 5: acceptance [B, N], the children's scale [B, N]."""
    tree = tl.program_id(1).to(tl.int64)
    row = tl.load(level + tl.program_id(0))
    node = tl.load(inner + row)
    if _absent(tokens, tree, node, N):
        return
    s = tl.load(scale + tree * N + node)
    numbers = rows + (tree * I + row) * 4
    j = tl.arange(0, SLOTS)
    slot = tl.load(slots + row * M + j, mask=j < M, other=-1)
    child = tl.load(tokens + tree * N + slot, mask=slot >= 0, other=-1)
    there = (child >= 0) & (child < V)
    last = there & (j == M - 1)
    p = tl.load(
        target + tree * target_tree + node * target_node + child, mask=there, other=-INFINITY
    ).to(tl.float64)
    q = tl.load(
        draft + tree * draft_tree + row * draft_node + child, mask=last, other=-INFINITY
    ).to(tl.float64)
    p = tl.exp2((p - tl.load(numbers + TARGET_SHIFT)) * k) / tl.load(numbers + TARGET_SUM)
    q = tl.exp2((q - tl.load(numbers + DRAFT_SHIFT)) * k) * _draft_factor(
        numbers, _sampled(tokens + tree * N, slots + row * M, M)
    )
    i = tl.arange(0, BLOCKS)
    beside = tl.load(sums + (tree * I + row) * K + i, mask=i < K, other=0.0).to(tl.float64)
    residual = tl.sum(beside, 0)
    surplus = tl.maximum(s * p - q, 0.0)  # q' is 0 at the fixed children
    whole = (1 - s) + residual + tl.sum(surplus, 0)  # Z
    at_sampled = tl.where(last, tl.where(s * p > q, 1.0, _ratio(s * p, q)), 0.0)
    # Z = 0 only where s = 1 and p = q': f = 0 leaves nothing beside the sampled child.
    factor = _ratio(1 - tl.sum(at_sampled, 0), whole)  # f
    accepted = tl.where(last, at_sampled, surplus * factor)
    residual = residual * factor
    beyond = residual + (1 - s) * factor
    prefix = _ratio(accepted, tl.cumsum(accepted, 0, reverse=True) + beyond)
    tl.store(acceptance + tree * N + slot, prefix, mask=slot >= 0)
    tl.store(residual_mass + tree * I + row, residual)
    # Whatever rounding leaves at the root, something is always emitted.
    tl.store(acceptance + tree * N + node, 1.0, mask=node == 0)
    if CONDITIONAL:
        tl.store(scale + tree * N + slot, prefix, mask=slot >= 0)
        tl.store(acceptance + tree * N + node, _ratio(residual, beyond), mask=node > 0)


@triton.jit
def decide(
    acceptance, uniforms, order, row_of, slots, stop, flag, N,
    CONDITIONAL: tl.constexpr, M: tl.constexpr, SLOTS: tl.constexpr,
    NODES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Fill stop [B]: the first accepted node in post-order, or the last entered from above."""
    tree = tl.program_id(0).to(tl.int64)
    acceptance += tree * N
    uniforms += tree * (N + 1)
    v = tl.arange(0, NODES)
    u = tl.load(uniforms + v, mask=v <= N, other=0.0)
    tl.store(flag, 1, mask=tl.max(((u >= 0) & (u < 1)).to(tl.int32) ^ 1, 0) > 0)
    node = tl.load(order + N - 1)  # the root is last
    if CONDITIONAL:
        tried = tl.load(order + v, mask=v < N, other=0)
        passes = (tl.load(uniforms + tried) < tl.load(acceptance + tried)) & (v < N)
        first = tl.min(tl.where(passes, v, N - 1), 0)
        node = tl.load(order + first)
    else:
        j = tl.arange(0, SLOTS)
        for _ in range(DEPTH):
            row = tl.load(row_of + node)
            slot = tl.load(slots + row * M + j, mask=(j < M) & (row >= 0), other=-1)
            eta = tl.load(uniforms + slot, mask=slot >= 0, other=1.0)
            enters = eta < tl.load(acceptance + slot, mask=slot >= 0, other=0.0)
            first = tl.min(tl.where(enters, j, SLOTS), 0)
            node += tl.sum(tl.where(j == first, slot - node, 0), 0)  # nobody entered: stay
    tl.store(stop + tree, node)


@triton.jit
def weigh(
    target, draft, tokens, stop, row_of, slots, rows, scale, residual_mass, weights, sums, shifts,
    flag, k, V, N, I, K, target_tree, target_node, draft_tree, draft_node,
    M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill weights [B, V] of the next token, float32, with sums and shifts [B, K] of their blocks.

    The residual at an inner node that has some, else the target's law, each block over its peak.
    """
    block, tree = tl.program_id(0), tl.program_id(1).to(tl.int64)
    node = tl.load(stop + tree)
    row = tl.load(row_of + node)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    p_row = target + tree * target_tree + node * target_node
    if tl.load(residual_mass + tree * I + row, mask=row >= 0, other=0.0) > 0:
        numbers = rows + (tree * I + row) * 4
        shift = tl.load(numbers + TARGET_SHIFT).to(tl.float32)
        weight = _residual(
            p_row, draft + tree * draft_tree + row * draft_node, tokens + tree * N,
            slots + row * M, numbers, tl.load(scale + tree * N + node), ids, k, V, M,
        )  # fmt: skip
    else:
        p = _logits(p_row, ids, V)
        peak = tl.max(p, 0)
        tl.store(flag, 1, mask=peak == INFINITY)
        shift = _shift(peak)
        weight = tl.exp2((p - shift) * k)
    tl.store(weights + tree * V + ids, weight, mask=ids < V)
    tl.store(sums + tree * K + block, tl.sum(weight.to(tl.float64), 0))
    tl.store(shifts + tree * K + block, shift)


@triton.jit
def _first_beyond(weights, bound, COUNT: tl.constexpr):
    """The first place whose running sum exceeds the bound; only places with weight count.

    The last of them is the answer where rounding lets none exceed; -1 where there is none.
    """
    i = tl.arange(0, COUNT)
    some = weights > 0
    found = tl.min(tl.where(some & (tl.cumsum(weights, 0) > bound), i, COUNT), 0)
    return tl.where(found < COUNT, found, tl.max(tl.where(some, i, -1), 0))


@triton.jit
def draw(
    weights, sums, shifts, uniforms, tokens, stop, paths, depths,
    accepted_nodes, num_accepted, next_token, emitted, flag, k, V, N, K,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The next token by inverse CDF in token-id order: its block first, then its place there."""
    tree = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCKS)
    mass = tl.load(sums + tree * K + i, mask=i < K, other=0.0)
    shift = tl.where(mass > 0, tl.load(shifts + tree * K + i, mask=i < K, other=0.0), -INFINITY)
    unit = tl.exp2((shift - _shift(tl.max(shift, 0))) * k).to(tl.float64)
    blocks = tl.where(mass > 0, mass * unit, 0.0)
    bound = tl.load(uniforms + tree * (N + 1) + N) * tl.sum(blocks, 0)
    block = _first_beyond(blocks, bound, BLOCKS)
    tl.store(flag, 1, mask=block < 0)
    block = tl.maximum(block, 0)
    inside = bound - tl.sum(tl.where(i < block, blocks, 0.0), 0)
    inside = _ratio(tl.maximum(inside, 0.0), tl.sum(tl.where(i == block, unit, 0.0), 0))
    ids = block * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weights + tree * V + ids, mask=ids < V, other=0.0).to(tl.float64)
    token = block * BLOCK + _first_beyond(weight, inside, BLOCK)
    node, d = tl.load(stop + tree), tl.arange(0, STEPS)
    path = tl.load(paths + node * DEPTH + d, mask=d < DEPTH, other=-1)
    kept, length = (
        tl.load(tokens + tree * N + path, mask=path >= 0, other=-1),
        tl.load(depths + node),
    )
    tl.store(accepted_nodes + tree * DEPTH + d, path, mask=d < DEPTH)
    here = emitted + tree * (DEPTH + 1) + d
    tl.store(here, tl.where(d == length, token, kept), mask=d <= DEPTH)
    tl.store(num_accepted + tree, length)
    tl.store(next_token + tree, token.to(tl.int64))
