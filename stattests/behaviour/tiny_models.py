"""Tiny causal language models for the decoding tests: no download, milliseconds a forward.

Letters: V vocabulary, T tokens, Q rows of a forward.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# Laws of the loop against laws of plain forwards. Float32 sums in another order differ by some 1e-6
# in the laws of these models and by 6e-5 in the logits of the embedded one; float64 by 1e-15.
LAW_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}

WORDS = ["<unk>", "<eos>", "the", "a", "of", "is", "what", "to", "in", "one", "on", "for"]


def tiny_llama(
    seed: int,
    *,
    vocabulary: int = 8,
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    max_positions: int = 64,
    attention: str = "sdpa",
    **config: Any,
) -> Any:
    """A randomly initialised Llama whose next-token laws depend visibly on the whole prefix."""
    llama: Any = LlamaConfig
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(
            llama(
                vocab_size=vocabulary,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=layers,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=max_positions,
                initializer_range=0.5,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
                attn_implementation=attention,
                **config,
            )
        )
    return model.to(dtype).eval()


def save_model(
    folder: Path,
    *,
    vocabulary: int = 12,
    words: list[str] = WORDS,
    split: str = "Whitespace",
    max_positions: int = 256,
) -> str:
    """A tiny model and its word-level tokenizer in a folder, as a user would have one."""
    ids = {word: number for number, word in enumerate(words)}
    model = tiny_llama(
        3, vocabulary=vocabulary, layers=4, dtype=torch.float32, max_positions=max_positions
    )
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": split},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
    }
    (folder / "words.json").write_text(json.dumps(tokenizer))
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_file=str(folder / "words.json"), unk_token="<unk>").save_pretrained(folder)
    return str(folder)


def plain_logits(model: Any, ids: Sequence[int]) -> Tensor:
    """Logits [T, V] of a plain causal forward: no cache, no mask, no position ids."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits


class PrefixTable:
    """A causal LM that looks its rows up by prefix; built from a real one behind a fixed prompt.

    Its "KV cache" holds the token ids and positions themselves, in a real DynamicCache, so that a
    decoding loop that masks, positions or keeps the wrong slots reads the row of another prefix,
    or of none: a prefix that is no text behind the prompt, or longer than the table is deep, and
    positions that do not run from 0 upwards are errors.
    """

    training = False
    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, model: Any, prompt: Sequence[int], depth: int) -> None:
        self.config = model.config
        self._head = model.get_output_embeddings()
        self.rows: dict[tuple[int, ...], Tensor] = {}
        ids = range(model.config.vocab_size)
        texts = torch.tensor([[*prompt, *tail] for tail in product(ids, repeat=depth)])
        with torch.no_grad():
            logits = model(input_ids=texts, use_cache=False).logits
        for text, rows in zip(texts.tolist(), logits, strict=True):
            for end in range(len(prompt), len(text) + 1):
                self.rows.setdefault(tuple(text[:end]), rows[end - 1])

    def get_output_embeddings(self) -> Any:
        """The head, for the size of the vocabulary."""
        return self._head

    def __call__(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        cache: Any,
        use_cache: bool,
        logits_to_keep: int,
    ) -> SimpleNamespace:
        """The last rows, as a causal LM's forward gives them."""
        assert use_cache
        keys, values = cache.update(
            input_ids.double()[:, None, :, None], position_ids.double()[:, None, :, None], 0
        )
        held = keys[0, 0, :, 0].long().tolist()
        places = values[0, 0, :, 0].long().tolist()
        assert attention_mask.shape == (1, 1, input_ids.shape[1], len(held))
        rows = []
        for sees in (attention_mask[0, 0, -logits_to_keep:] == 0).tolist():
            seen = sorted((places[i], held[i]) for i, look in enumerate(sees) if look)
            assert [place for place, _ in seen] == list(range(len(seen)))
            prefix = tuple(token for _, token in seen)
            rows.append(self.rows[prefix])  # a prefix that the table lacks is an error
        return SimpleNamespace(logits=torch.stack(rows)[None], cache=cache)
