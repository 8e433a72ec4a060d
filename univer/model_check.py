"""Whether a model reads drafted tokens as it reads plain text: asked of the model itself, once.

What is known of layers (`layer_kinds`) is by their configuration. So the first tree, or chain, that
a model is to read is preceded by a small one of random tokens, read as the decoder reads them: the
text and the tree in one forward, some of it kept, and a further step behind what was kept. The
logits are compared with those of the same paths as plain text, without cache, mask or positions.
That takes three forwards of a few tokens; where the configuration names a window of up to LONGEST
tokens, the text reaches beyond it.

The model is called past its hooks: those that count or record a text's forwards see none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from univer.drafting import DraftTree
from univer.errors import InputError
from univer.topology import Topology

if TYPE_CHECKING:
    from univer.cached_model import CachedModel

LONGEST = 1024
SHORTEST = 2  # tokens of the text where no window is named
WINDOWS = (
    "sliding_window",
    "attention_chunk_size",
    "window_size",
    "attention_window_size",
    "index_topk",
)
SEED = 20
# Root-mean-square difference of a row's logits, by the spread of the row. Rounding does 3e-6 in
# float32 (SmolLM2, 30 layers), and 1e-3 where CUDA multiplies float32 with the ten bits of TF32;
# much of a float64 model of transformers (norms, rotary angles, softmax) is float32. Rounding in 16
# bits does .004 in float16 and .04 in bfloat16, and more where it moves a token to another expert:
# only gross faults are seen there (siblings that see each other: .6).
TOLERANCE = {
    torch.float64: 1e-4,
    torch.float32: 3e-3,
    torch.float16: 0.1,
    torch.bfloat16: 0.3,
}
FIRST = {True: (-1, 0, 1), False: (-1, 0, 0, 1, 2)}  # the first chain, the first tree
KEPT = {True: (1, 2), False: (2, 4)}  # a node of it that is kept, and its child, read again
SECOND = Topology((-1, 0))
# What a forward raises that does not know what to do with its arguments.
REFUSALS = (AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError)

# For each model: attention, chains or trees, way of feeding -> what is wrong with it.
_found: WeakKeyDictionary[Any, dict[tuple[str, bool, str], str | None]] = WeakKeyDictionary()


def check_model(session: CachedModel, ways: Sequence[str], *, chains: bool) -> str:
    """The first of the ways of feeding it that gives the logits of plain text.

    Args:
        session: a CachedModel; it is not touched, and only its model is read.
        ways: as in `layer_kinds.ways`.
        chains: whether chains are to be read, else trees.

    Raises:
        InputError: none does.
    """
    model: Any = session.model
    if not isinstance(model, torch.nn.Module):
        return ways[0]  # a stand-in without layers, such as a table of rows
    config, kinds = session.config, ", ".join(session.layers.kinds)
    attention: str = config._attn_implementation
    found = _found.setdefault(model, {})
    for way in ways:
        if (attention, chains, way) not in found:
            found[attention, chains, way] = _fault(session, way, chains=chains)
        if found[attention, chains, way] is None:
            return way
    what, other = ("chains", "") if chains else ("trees", "a topology such as 'chain:4' or ")
    raise InputError(
        f"{session.argument}: {what} of this model of type {config.model_type!r} cannot be verified"
        f" exactly (attention {attention!r}, layers of type {kinds}):"
        f" {found[attention, chains, ways[0]]}; take {other}another model (check_model=False"
        " trusts this one)."
    )


@torch.no_grad()
def _fault(session: CachedModel, way: str, *, chains: bool) -> str | None:
    """What is wrong with reading drafted tokens this way, None if nothing is."""
    model = session.model
    trial = type(session)(model, session.argument, check=False)
    trial.forward, trial.way = model.forward, way
    first, (kept, again) = Topology(FIRST[chains]), KEPT[chains]
    length = _text_length(session.config, session.max_positions)
    ids = _tokens(model, session.vocabulary, length + first.num_nodes + 1)
    text, drafts, (root, draft) = ids[:length], ids[length - 1 : -2], ids[-2:]
    later = [*text, drafts[kept], drafts[again], root]
    try:
        if trial.layers.stateful:  # or else a rejection would bring back an empty state
            trial.logits(text[:1], DraftTree(SECOND, torch.tensor([[text[0], -1]])), (0,))
        rows = [*_read(trial, text, first, drafts)]
        trial.keep([kept])
        rows += _read(trial, later, SECOND, [root, draft])
        paths = [[*text[:-1], *(drafts[v] for v in _path(first, v))] for v in range(len(drafts))]
        paths += [later, [*later, draft]]
        plain = _plain_rows(model, paths)
        worst = max(_distance(row, one) for row, one in zip(rows, plain, strict=True))
    except torch.OutOfMemoryError:
        raise
    except (*REFUSALS, RuntimeError) as error:
        return f"fed with them it raises {type(error).__name__} ({error})"
    if worst <= TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16]):
        return None
    return f"their logits are off those of plain text by {worst:.2g} of the spread"


def _read(
    trial: CachedModel, text: Sequence[int], shape: Topology, tokens: Sequence[int]
) -> Tensor:
    tree = DraftTree(shape, torch.tensor([tokens], device=trial.device))
    logits: Tensor = trial.logits(text, tree, range(shape.num_nodes))[0]
    return logits


def _path(topology: Topology, node: int) -> list[int]:
    """The nodes from the root to this one."""
    path = [node]
    while path[0]:
        path.insert(0, topology.parents[path[0]])
    return path


def _plain_rows(model: Any, paths: list[list[int]]) -> list[Tensor]:
    """The logits after each path, in as few rows of one plain forward as hold them all."""
    whole = [p for p in paths if not any(len(o) > len(p) and o[: len(p)] == p for o in paths)]
    longest = max(map(len, whole))
    # Behind the end of a path any token will do: a causal model does not look ahead.
    padded = [[*path, *path[:1] * (longest - len(path))] for path in whole]
    device = model.device
    logits = model.forward(input_ids=torch.tensor(padded, device=device), use_cache=False).logits
    where = [next(i for i, o in enumerate(whole) if o[: len(p)] == p) for p in paths]
    return [logits[i, len(path) - 1] for i, path in zip(where, paths, strict=True)]


def _distance(row: Tensor, other: Tensor) -> float:
    """Root-mean-square difference of two rows of logits [V], by the spread of the second."""
    one, two = (x.double() - x.double().mean() for x in (row, other))
    spread, off = two.square().mean().sqrt(), (one - two).square().mean().sqrt()
    if not off.isfinite():
        return float("inf")
    return float(off / spread) if spread > 0 else float(off)


def _text_length(config: Any, positions: int | None) -> int:
    """Tokens of the text before the first tree: its edge lies within the tree's slots.

    Nodes beyond it by their slots are within it by their positions; the second step goes beyond it.
    """
    named = (getattr(layer, name, None) for layer in config.per_layer_config for name in WINDOWS)
    windows = [w - 2 for w in named if isinstance(w, int) and SHORTEST + 2 < w <= LONGEST]
    length = max(windows, default=SHORTEST)
    return length if positions is None else max(1, min(length, positions - 4))


def _tokens(model: Any, vocabulary: int, count: int) -> list[int]:
    """Random token ids, neighbours different, without those of a special meaning if possible."""
    embedding = model.get_input_embeddings()
    size = vocabulary if embedding is None else min(vocabulary, embedding.weight.shape[0])
    config = model.config.to_dict()
    special = {v for name, v in config.items() if name.endswith("token_id") and isinstance(v, int)}
    plain = [token for token in range(min(size, 4096)) if token not in special] or [0]
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(plain), generator=generator).tolist()
    return [plain[order[i % len(order)]] for i in range(count)]
