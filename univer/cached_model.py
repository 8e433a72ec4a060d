"""A causal language model that holds a text in its KV cache and can grow a tree behind it.

Target and drafters share this one code path. A text is a list of token ids whose last one is the
tree's root; what the cache does not hold of it is *pending*. One forward takes the pending tokens
as a chain and tree nodes behind them: a mask lets each node see the text and its own ancestors, so
that its logits are those of a plain forward over its path. Prefill is the case in which everything
is pending.

The cache holds `length` tokens of the text, then the tree nodes fed so far, in the order of
`nodes`; `keep` drops all nodes but the accepted ones, which are text from then on. When asked to,
it remembers a feature for every slot of the cache: what the LM head reads there.

A model that takes chains only (`layer_kinds`) is fed them as plain text, without a mask, or, where
`model_check` finds that it cannot go on by several tokens at once, token by token: right, but no
faster than plain decoding. Where its cache keeps a state from which nothing can be dropped, a
rejection brings back the state before the root, and what was accepted is pending once more.

Letters: P pending tokens, N tree nodes, n nodes of a call, T text, d width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from univer.drafting import DraftTree
from univer.errors import InputError
from univer.layer_kinds import additive, empty_cache, read_layers, ways
from univer.state import State
from univer.topology import Topology

ROOT_ALONE = Topology((-1,), "none")
# Accepted tokens that are read again with the next tree; more get a forward of their own, so that a
# text of rejections does not read ever longer tails. A forward of 16 costs little more than of one.
AGAIN = 16


class CachedModel:
    """A Hugging Face causal LM and the cache of one text.

    Args:
        model: in evaluation mode; it is read, never changed.
        argument: what error messages call it.
        check: compare a small tree or chain with plain text before the first one is read, once a
            model (`model_check`).

    Raises:
        InputError: not a causal LM of transformers, in training mode, without a cache, or with an
            attention that cannot be masked by a tree.
    """

    def __init__(self, model: Any, argument: str = "target", *, check: bool = True) -> None:
        config = _text_config(model, argument)
        if model.training:
            raise InputError(f"{argument}: the model is in training mode; call .eval() first.")
        self.config, self.layers = config, read_layers(model, config, argument)
        self.model, self.argument, self.check = model, argument, check
        self.way = ways(self.layers, chains=True)[0]
        self.vocabulary = _vocabulary(model, config)
        self.max_positions = _max_positions(config)
        self.turn = _turn(config)
        self.length = 0
        self.nodes: tuple[int, ...] = ()
        self.forward: Callable[..., Any] = model
        self._cache = empty_cache(config, self.layers.stateful)
        self._before: State | None = None  # of a stateful model, before the root was read
        self._remembers = False
        self._features: Tensor | None = None  # [slots of the cache, d]
        self._allowed: set[bool] = set()

    def remember_features(self) -> None:
        """From now on keep the features of the text; to be called before anything is read."""
        self._remembers = True

    def features(self, text: Sequence[int]) -> Tensor:
        """The last hidden states, after the final norm, of all tokens but the root: [T - 1, d].

        What the cache does not hold of them is read first.

        Args:
            text: at least two token ids, as for `logits`; the last is the root.
        """
        if self.length < len(text) - 1:
            last = torch.tensor([[text[-2]]], device=self.device)
            self.logits(text[:-1], DraftTree(ROOT_ALONE, last), (0,))
        assert self._features is not None
        return self._features[: len(text) - 1]

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        device: torch.device = self.model.device
        return device

    def allow(self, *, chains: bool) -> None:
        """Settle that chains, or else trees, can be read; nothing of the text is.

        Raises:
            InputError: the model cannot take them, or not exactly.
        """
        if chains in self._allowed:
            return
        if not chains and self.layers.no_trees is not None:
            raise InputError(
                f"{self.argument}: {self.layers.no_trees}; a model of type"
                f" {self.config.model_type!r} takes no trees, but chains: a topology such as"
                " 'chain:4'."
            )
        if self.check:
            from univer.model_check import check_model  # it reads trees through a CachedModel

            self.way = check_model(self, ways(self.layers, chains=chains), chains=chains)
        # Where trees are right chains are, but not the other way round.
        self._allowed |= {chains, True}

    @torch.no_grad()
    def logits(self, text: Sequence[int], tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """The logits after these nodes of the tree behind the text: [1, n, V].

        Args:
            text: token ids; the last is the root. Tokens that the cache already holds must be the
                ones that it was given.
            tree: one tree, B = 1. Absent nodes may be asked for; their rows mean nothing.
            nodes: in level order; the first call of a cycle starts with the root, later calls
                name nodes whose parents were fed before.

        Raises:
            InputError: the model cannot take such a tree, or not exactly.
        """
        self.allow(chains=tree.topology.max_arity < 2)
        if 0 in nodes and self.length >= len(text):
            # The tree before was forgotten and the root is to be read again.
            self._drop_to(len(text) - 1)
        if 0 in nodes and self.layers.stateful:
            if len(text) - self.length > AGAIN:
                self._feed(text[self.length : -1], range(self.length, len(text) - 1), None, 1)
                self.length = len(text) - 1
            self._before = State(self._cache, self.length)
        pending = list(text[self.length :])
        fed = [v for v in nodes if v != 0]
        # An absent node (-1) is fed as id 0; no present node has it as an ancestor.
        drafted = tree.tokens[0, fed].clamp(min=0).tolist()
        places = [len(text) - 1 + tree.topology.depths[v] for v in (*self.nodes, *fed)]
        held = [*range(self.length), *places[: len(self.nodes)]]
        rows = [*range(self.length, len(text)), *places[len(self.nodes) :]]
        mask = None
        if self.way == "masked":
            sees = _sees(tree.topology, self.length, self.nodes, len(pending), fed)
            slots = torch.tensor([*held, *rows])
            mask = self.layers.masks(sees, slots[len(held) :], slots, self.model.dtype)
        if self.turn is not None and len(text) <= self.turn:
            # Nodes behind it are beyond the token budget, see below, but would turn all angles.
            rows = [min(place, self.turn - 1) for place in rows]
        logits = self._feed([*pending, *drafted], rows, mask, len(nodes))
        self.length = len(text)
        self.nodes += tuple(fed)
        return logits

    def _feed(self, ids: Sequence[int], places: Sequence[int], mask: Any, rows: int) -> Tensor:
        """The last logits [1, rows, V] of a forward that adds these tokens to the cache."""
        if self.way == "stepwise" and len(ids) > 1:
            steps = [self._feed([i], [at], None, 1) for i, at in zip(ids, places, strict=True)]
            return torch.cat(steps[-rows:], 1)
        positions = torch.tensor(places)
        if self.max_positions is not None:
            # Only nodes beyond the token budget lie there. A conditional verifier reads them before
            # it decides, but the law of the tokens within the budget stays right: a verifier is
            # lossless whatever laws it is told of deeper nodes.
            positions = positions.clamp(max=self.max_positions - 1)
        more: dict[str, Any] = {}
        device = self.device
        if self.layers.takes_positions:
            more["position_ids"] = positions[None].to(device)
        if isinstance(mask, dict):
            more["attention_mask"] = {kind: one.to(device) for kind, one in mask.items()}
        elif mask is not None:
            more["attention_mask"] = mask.to(device)
        # Only a model that is asked for its hidden states has to know the argument.
        if self._remembers:
            more["output_hidden_states"] = True
        output = self.forward(
            input_ids=torch.tensor([ids], device=device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=rows,
            **more,
        )
        self._cache = output.cache
        if self._remembers:
            read = output.hidden_states[-1][0]
            held = self._features
            self._features = read if held is None else torch.cat([held, read])
        logits: Tensor = output.logits[:, -rows:]
        return logits

    @torch.no_grad()
    def keep(self, accepted: Sequence[int] = ()) -> None:
        """Drop the tree from the cache, but for the accepted nodes, which become text.

        Args:
            accepted: a path from the root's child down. Nodes that were not fed (a leaf, in a
                drafter) end it: they are pending next time.
        """
        if not self.nodes:
            return
        kept = [self.length + self.nodes.index(v) for v in accepted if v in self.nodes]
        if len(kept) == len(self.nodes):
            self.length, self.nodes = self.length + len(kept), ()
        elif self.layers.stateful:
            self._drop_to(self.length - 1)
        else:
            self._select([*range(self.length), *kept])
            self.length, self.nodes = self.length + len(kept), ()

    def _drop_to(self, length: int) -> None:
        """Forget the tree and all of the text behind this many tokens, or some before as well."""
        if not self.layers.stateful:
            self._select(range(length))
            self.length, self.nodes = length, ()
            return
        assert self._before is not None
        self._before.bring_back(self._cache)
        self.length, self.nodes = self._before.length, ()
        if self._features is not None:
            self._features = self._features[: self.length]

    def _select(self, slots: Sequence[int]) -> None:
        """Keep only these slots of the cache."""
        layers: Sequence[Any] = self._cache.layers
        for layer in layers:
            if layer.keys is None:
                continue  # it sees one token at a time, or another layer's cache
            at = torch.tensor(slots, dtype=torch.int64, device=layer.keys.device)
            layer.keys = layer.keys.index_select(2, at)
            layer.values = layer.values.index_select(2, at)
        if self._features is not None:
            at = torch.tensor(slots, dtype=torch.int64, device=self._features.device)
            self._features = self._features.index_select(0, at)


def tree_mask(
    topology: Topology,
    length: int,
    held: Sequence[int],
    pending: int,
    fed: Sequence[int],
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Additive mask [1, 1, P + n, length + held + P + n]: 0 where a row may look, else the minimum.

    Args:
        topology: the tree's shape.
        length: tokens of the text in the cache, which come first there.
        held: tree nodes in the cache, behind the text.
        pending: number P of the text's tokens that are fed now, the first rows.
        fed: the n nodes that are fed now, the rows behind them; each sees itself, its ancestors
            and the text.
        dtype: of the mask.

    Example:
        >>> mask = tree_mask(Topology.parse("2x1"), 1, (), 0, (1, 2), dtype=torch.float32)
        >>> (mask[0, 0] == 0).tolist()
        [[True, True, False], [True, False, True]]
    """
    return additive(_sees(topology, length, held, pending, fed), dtype)


def _sees(
    topology: Topology, length: int, held: Sequence[int], pending: int, fed: Sequence[int]
) -> Tensor:
    """Which slots of the cache each row is behind, as in `tree_mask`: bool."""
    rows, before = pending + len(fed), length + len(held)
    sees = torch.zeros(rows, before + rows, dtype=torch.bool)
    sees[:, :length] = True
    sees[:, before : before + pending] = torch.ones(rows, pending, dtype=torch.bool).tril()
    if fed:
        ancestors = _ancestors(topology)[list(fed)]
        sees[pending:, length:before] = ancestors[:, list(held)]
        sees[pending:, before + pending :] = ancestors[:, list(fed)]
    return sees


@lru_cache(maxsize=32)
def _ancestors(topology: Topology) -> Tensor:
    return topology.attention_mask()


def _text_config(model: Any, argument: str) -> Any:
    config = getattr(model, "config", None)
    if config is None or not callable(getattr(model, "get_output_embeddings", None)):
        raise InputError(
            f"{argument}: expected a causal LM of transformers, got {type(model).__name__}."
        )
    return config.get_text_config(decoder=True)


def _vocabulary(model: Any, config: Any) -> int:
    """Number of logits, which may exceed the tokenizer's vocabulary (padded models)."""
    head = model.get_output_embeddings()
    return int(config.vocab_size if head is None else head.weight.shape[0])


def _max_positions(config: Any) -> int | None:
    """Tokens that the model has positions for; None when unlimited. A window is no limit."""
    names = ("max_position_embeddings", "max_seq_len")
    limits = [value for name in names if isinstance(value := getattr(config, name, None), int)]
    return min((limit for limit in limits if limit > 0), default=None)


def _turn(config: Any) -> int | None:
    """Tokens beyond which a text is read with other rotary angles from its beginning (longrope)."""
    given = getattr(config, "rope_parameters", None) or {}
    ropes = [given, *(rope for rope in given.values() if isinstance(rope, dict))]
    turns = [
        rope["original_max_position_embeddings"]
        for rope in ropes
        if rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings")
    ]
    return min(turns, default=None)
