"""Drafting with an EAGLE-1 head: the target's own features, one decoder layer, the target's head.

The text is fed as pairs (embedding of token j, the target's feature of token j - 1), j = 1, 2, ...;
the pair of the root gives the draft law after the root. A node has the pair (its embedding, the
head's own output at its parent). When the cycle is over the whole tree is forgotten: accepted
tokens come back as text, with the target's features in place of the guessed ones.

Letters: P pending pairs, n nodes of a call, T text, d width, V vocabulary, K draft vocabulary.
Source: Li et al. 2024 (EAGLE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import DynamicCache

from univer.cached_model import ROOT_ALONE, CachedModel, tree_mask
from univer.drafters.draft_vocabulary import check_draft_vocabulary
from univer.drafters.eagle_files import check_fits, read_head, write_head
from univer.drafters.eagle_network import EagleNetwork
from univer.drafting import DraftTree


@dataclass(frozen=True)
class EagleHead:
    """Drafts from the target's features: one small layer and the target's LM head a level.

    Args:
        network: the trained part, in evaluation mode, with the target's dtype and device.
        draft_vocabulary: the only token ids that are drafted, a sequence or an integer tensor [K];
            None for all. Only their rows of the LM head are multiplied: it is lossless, costs less
            a level, and accepts less where the target wants other tokens.

    Raises:
        InputError: a draft vocabulary that is empty, out of range or has an id twice.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from univer.decoding import generate
        >>> config = LlamaConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2,
        ...     num_attention_heads=1,
        ... )
        >>> target = LlamaForCausalLM(config).eval()
        >>> drafter = EagleHead(EagleNetwork(config).eval())
        >>> done = generate(target, drafter, [1, 2, 3], max_new_tokens=9, eos_token_id=(), seed=0)
        >>> len(done.tokens)
        9
    """

    network: EagleNetwork
    draft_vocabulary: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.draft_vocabulary is not None:
            ids = check_draft_vocabulary(self.draft_vocabulary, self.network.config.vocab_size)
            object.__setattr__(self, "draft_vocabulary", ids)

    @staticmethod
    def from_pretrained(
        folder: str | Path, target: Any, *, draft_vocabulary: Sequence[int] | None = None
    ) -> EagleHead:
        """A head out of a folder, in the target's dtype and on its device.

        Args:
            folder: config.json with model.safetensors or pytorch_model.bin: a head that EAGLE's
                authors or others published in their layout, or one that `save_pretrained` wrote.
            target: the causal LM that it was trained for.
            draft_vocabulary: instead of the one in the folder, if there is one.

        Raises:
            InputError: not such a folder, weights that do not fit the config, a width or vocabulary
                that is not the target's, or a draft vocabulary that is none.
        """
        network, own = read_head(Path(folder))
        check_fits(network, target)
        ids = own if draft_vocabulary is None else draft_vocabulary
        return EagleHead(network.to(target.device, target.dtype).eval(), ids)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors (float16) into a folder, made if need be.

        Raises:
            InputError: the folder cannot be written.
        """
        write_head(self.network, self.draft_vocabulary, Path(folder))

    def start(self, target: CachedModel) -> EagleSession:
        """A session for a new text.

        Raises:
            InputError: the target's width or vocabulary is another one.
        """
        check_fits(self.network, target.model)
        return EagleSession(self.network, target, self.draft_vocabulary)


class ReducedHead:
    """An LM head of which only some rows are multiplied; all other logits are -inf.

    Args:
        head: the target's.
        ids: the token ids of the rows [K], which are copied.
    """

    def __init__(self, head: Any, ids: Sequence[int]) -> None:
        self._vocabulary = head.weight.shape[0]
        self._ids = torch.tensor(ids, device=head.weight.device)
        self._weight = head.weight.detach()[self._ids]
        bias = getattr(head, "bias", None)
        self._bias = None if bias is None else bias.detach()[self._ids]

    def __call__(self, features: Tensor) -> Tensor:
        """Logits [..., V] of features [..., d]."""
        few = linear(features, self._weight, self._bias)
        logits = few.new_full((*few.shape[:-1], self._vocabulary), -torch.inf)
        return logits.index_copy_(-1, self._ids, few)


class EagleSession:
    """An EAGLE head that follows one text; it reads the text's features from the target.

    The first call of a text has the target read the prompt, which counts as drafting time.
    """

    max_positions: int | None = None  # a rotary embedding has no end

    def __init__(
        self, network: EagleNetwork, target: CachedModel, draft_vocabulary: Sequence[int] | None
    ) -> None:
        target.remember_features()
        self.vocabulary = target.vocabulary
        self._network, self._target = network, target
        self._embed = target.model.get_input_embeddings()
        self._head = target.model.get_output_embeddings()
        if draft_vocabulary is not None:
            self._head = ReducedHead(self._head, draft_vocabulary)
        self._cache = DynamicCache()
        self._length = 0  # pairs of the text in the cache, which come first there
        self._nodes: tuple[int, ...] = ()  # nodes in the cache, behind them
        self._outputs: dict[int, Tensor] = {}  # guessed feature [d] after each node

    @property
    def device(self) -> torch.device:
        """Where the head lives."""
        return self._network.fc.weight.device

    @torch.no_grad()
    def logits(self, text: Sequence[int], tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """Logits [1, n, V] for the children of these nodes, which are of one level.

        Called with the root alone first. Rows of absent nodes mean nothing.
        """
        features = self._read_text(text) if 0 in nodes else self._read_nodes(tree, nodes)
        self._outputs.update(zip(nodes, features, strict=True))
        logits: Tensor = self._head(features[None])
        return logits

    def keep(self, accepted: Sequence[int] = ()) -> None:
        """Forget the tree; accepted nodes are read again as text, with the target's features."""
        del accepted
        self._crop(self._length)

    def _read_text(self, text: Sequence[int]) -> Tensor:
        """The guess at the root, [1, d]."""
        # The root's pair is always read, so that a second tree in the same context finds it.
        self._crop(min(self._length, max(len(text) - 2, 0)))
        if len(text) == 1:
            # There is no feature before a text's first token. The pair made up for it is no part of
            # the text: `_length` stays 0, and it is gone with the tree.
            features = self._network.fc.weight.new_zeros(1, self._network.config.hidden_size)
            tokens, places = list(text), [0]
        else:
            features = self._target.features(text)[self._length :]
            tokens = list(text[self._length + 1 :])
            places = list(range(self._length, len(text) - 1))
        mask = tree_mask(ROOT_ALONE, self._length, (), len(tokens), (), dtype=features.dtype)
        guesses = self._forward(torch.tensor(tokens), features, mask, places)
        self._length = len(text) - 1
        return guesses[-1:]

    def _read_nodes(self, tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """The guesses at these nodes, [n, d]."""
        topology = tree.topology
        features = torch.stack([self._outputs[topology.parents[v]] for v in nodes])
        # A text of one token has a pair that is not counted in its length.
        held = max(self._length, 1)
        mask = tree_mask(topology, held, self._nodes, 0, nodes, dtype=features.dtype)
        places = [held - 1 + topology.depths[v] for v in nodes]
        # An absent node (-1) is fed as id 0; no present node has it as an ancestor.
        guesses = self._forward(tree.tokens[0, list(nodes)].clamp(min=0), features, mask, places)
        self._nodes += tuple(nodes)
        return guesses

    def _forward(
        self, tokens: Tensor, features: Tensor, mask: Tensor, places: Sequence[int]
    ) -> Tensor:
        embeddings = self._embed(tokens.to(self.device))
        guesses: Tensor = self._network(
            embeddings[None],
            features[None].to(embeddings),
            mask=mask.to(self.device),
            positions=torch.tensor([list(places)], device=self.device),
            cache=self._cache,
        )[0]
        return guesses

    def _crop(self, pairs: int) -> None:
        """Keep this many pairs of the text, and no nodes."""
        layers: Sequence[Any] = self._cache.layers
        for layer in layers:
            layer.keys = layer.keys[:, :, :pairs]
            layer.values = layer.values[:, :, :pairs]
        self._length, self._nodes, self._outputs = pairs, (), {}
