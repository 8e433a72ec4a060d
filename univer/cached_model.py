"""A causal language model that holds a text in its KV cache and can grow a tree behind it.

Target and drafters share this one code path. A text is a list of token ids whose last one is the
tree's root; what the cache does not hold of it is *pending*. One forward takes the pending tokens
as a chain and tree nodes behind them: a mask lets each node see the text and its own ancestors, so
that its logits are those of a plain forward over its path. Prefill is the case in which everything
is pending.

The cache holds `length` tokens of the text, then the tree nodes fed so far, in the order of
`nodes`; `keep` drops all nodes but the accepted ones, which are text from then on. When asked to,
it remembers a feature for every slot of the cache: what the LM head reads there.

Letters: P pending tokens, N tree nodes, n nodes of a call, T text, d width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from univer.drafting import DraftTree
from univer.errors import InputError
from univer.topology import Topology

# Other implementations ignore a 4-D mask, which would let siblings see each other.
ATTENTION = ("sdpa", "eager")
ROOT_ALONE = Topology((-1,), "none")


class CachedModel:
    """A Hugging Face causal LM and the cache of one text.

    Args:
        model: in evaluation mode; it is read, never changed.
        argument: what error messages call it.

    Raises:
        InputError: not a causal LM of transformers, in training mode, or with an attention that
            cannot be masked by a tree.
    """

    def __init__(self, model: Any, argument: str = "target") -> None:
        config = _text_config(model, argument)
        if model.training:
            raise InputError(f"{argument}: the model is in training mode; call .eval() first.")
        attention = config._attn_implementation
        if attention not in ATTENTION:
            raise InputError(
                f"{argument}: attention {attention!r} takes no tree mask; load the model with"
                f" attn_implementation set to one of {', '.join(ATTENTION)}."
            )
        others = set(getattr(config, "layer_types", None) or ()) - {
            "full_attention",
            "sliding_attention",
            "chunked_attention",
        }
        if others:
            raise InputError(
                f"{argument}: layers of type {', '.join(sorted(others))} keep a state that cannot"
                " hold a tree; a model with attention in every layer is needed."
            )
        self.model = model
        self.vocabulary = _vocabulary(model, config)
        self.max_positions = _max_positions(config)
        self.length = 0
        self.nodes: tuple[int, ...] = ()
        self._cache = DynamicCache()
        self._remembers = False
        self._features: Tensor | None = None  # [slots of the cache, d]

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

    @torch.no_grad()
    def logits(self, text: Sequence[int], tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """The logits after these nodes of the tree behind the text: [1, n, V].

        Args:
            text: token ids; the last is the root. Tokens that the cache already holds must be the
                ones that it was given.
            tree: one tree, B = 1. Absent nodes may be asked for; their rows mean nothing.
            nodes: in level order; the first call of a cycle starts with the root, later calls
                name nodes whose parents were fed before.
        """
        if 0 in nodes and self.length >= len(text):
            # The tree before was forgotten and the root is to be read again.
            self._select(range(len(text) - 1))
            self.length, self.nodes = len(text) - 1, ()
        pending = list(text[self.length :])
        fed = [v for v in nodes if v != 0]
        # An absent node (-1) is fed as id 0; no present node has it as an ancestor.
        drafted = tree.tokens[0, fed].clamp(min=0)
        ids = torch.cat([drafted.new_tensor(pending), drafted])[None]
        depths = torch.tensor([tree.topology.depths[v] for v in fed], dtype=torch.int64)
        positions = torch.cat([torch.arange(self.length, len(text)), len(text) - 1 + depths])
        if self.max_positions is not None:
            # Only nodes beyond the token budget lie there. A conditional verifier reads them before
            # it decides, but the law of the tokens within the budget stays right: a verifier is
            # lossless whatever laws it is told of deeper nodes.
            positions = positions.clamp(max=self.max_positions - 1)
        mask = tree_mask(
            tree.topology, self.length, self.nodes, len(pending), fed, dtype=self.model.dtype
        )
        # Only a model that is asked for its hidden states has to know the argument.
        extra = {"output_hidden_states": True} if self._remembers else {}
        output = self.model(
            input_ids=ids,
            attention_mask=mask.to(self.device),
            position_ids=positions[None].to(self.device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=len(nodes),
            **extra,
        )
        self._cache = output.cache
        if self._remembers:
            read = output.hidden_states[-1][0]
            held = self._features
            self._features = read if held is None else torch.cat([held, read])
        self.length = len(text)
        self.nodes += tuple(fed)
        logits: Tensor = output.logits[:, -len(nodes) :]
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
        self._select([*range(self.length), *kept])
        self.length, self.nodes = self.length + len(kept), ()

    def _select(self, slots: Sequence[int]) -> None:
        """Keep only these slots of the cache."""
        layers: Sequence[Any] = self._cache.layers
        for layer in layers:
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
    rows, before = pending + len(fed), length + len(held)
    sees = torch.zeros(rows, before + rows, dtype=torch.bool)
    sees[:, :length] = True
    sees[:, before : before + pending] = torch.ones(rows, pending, dtype=torch.bool).tril()
    if fed:
        ancestors = _ancestors(topology)[list(fed)]
        sees[pending:, length:before] = ancestors[:, list(held)]
        sees[pending:, before + pending :] = ancestors[:, list(fed)]
    mask = torch.zeros(1, 1, *sees.shape, dtype=dtype)
    return mask.masked_fill_(~sees, torch.finfo(dtype).min)


@lru_cache(maxsize=32)
def _ancestors(topology: Topology) -> Tensor:
    return topology.attention_mask()


def _text_config(model: Any, argument: str) -> Any:
    config = getattr(model, "config", None)
    if config is None or not callable(getattr(model, "get_output_embeddings", None)):
        raise InputError(
            f"{argument}: expected a causal LM of transformers, got {type(model).__name__}."
        )
    return config.get_text_config()


def _vocabulary(model: Any, config: Any) -> int:
    """Number of logits, which may exceed the tokenizer's vocabulary (padded models)."""
    head = model.get_output_embeddings()
    return int(config.vocab_size if head is None else head.weight.shape[0])


def _max_positions(config: Any) -> int | None:
    """Tokens that the model can attend to as in a plain forward; None when unlimited."""
    # Inside its window, sliding or chunked attention is full attention.
    names = ("max_position_embeddings", "sliding_window", "attention_chunk_size")
    limits = [value for name in names if isinstance(value := getattr(config, name, None), int)]
    return min(limits) if limits else None
