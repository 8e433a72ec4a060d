"""One decoding cycle, part by part: how much of it is not the models'.

The models are a Llama of SmolLM2-135M's shape and an EAGLE head for it, with random weights: times
do not depend on weights, and with laws this flat UniVer reads nearly every inner node.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from univer.decoder import Decoder
from univer.drafters.eagle import EagleHead
from univer.drafters.eagle_network import EagleNetwork
from univer.filters import Filters
from univer.topology import Topology
from univer.verifiers import VERIFIERS, verify

SHAPE = LlamaConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
PROMPT = 128  # tokens
PARTS = {
    "draft_models": "drafting: forwards of the head",
    "draws": "drafting: laws, draws, checks",
    "target": "target: the forward of the tree",
    "verify": "verification from the logits",
    "verify_laws": "verification before: laws of all nodes, then float64",
    "keep": "both caches, and the text",
}


def models(device: torch.device) -> tuple[Any, EagleHead]:
    """Target and head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = LlamaForCausalLM(SHAPE).eval().to(device)
        return target, EagleHead(EagleNetwork(SHAPE).eval().to(device))


def cycle_parts(
    target: Any, head: EagleHead, topology: str, cycles: int, verifier: str = "univer"
) -> dict[str, float]:
    """Median milliseconds of each of PARTS, a cycle."""
    spent: dict[str, float] = defaultdict(float)
    decoder = Decoder(
        target, head, list(range(1, PROMPT)), filters=Filters(), max_new_tokens=16 * cycles
    )

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = decoder.now()
            result = call(*arguments)
            spent[name] += 1e3 * (decoder.now() - start)
            return result

        return timed

    drafter: Any = decoder._drafter
    drafter.logits = watched("draft_models", drafter.logits)
    shape, generator = Topology.parse(topology), torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    for number in range(cycles + 1):
        spent.clear()
        drawn = decoder.draw(VERIFIERS[verifier].drafting, shape, generator=generator)
        start = decoder.now()
        output = decoder.decide(verifier, drawn, generator=generator)
        decided = decoder.now()
        target_probs = drawn.filters(drawn.target_logits)
        verify(verifier, drawn.tree, target_probs, drawn.draft_probs, generator=generator)
        before = decoder.now()
        decoder.advance(output)
        spent["draws"] = drawn.draft_ms - spent["draft_models"]
        spent["target"] = drawn.target_ms
        spent["verify"], spent["verify_laws"] = 1e3 * (decided - start), 1e3 * (before - decided)
        spent["keep"] = 1e3 * (decoder.now() - before)
        if number > 0:  # the first one reads the prompt
            for name, values in found.items():
                values.append(spent[name])
    return {name: statistics.median(values) for name, values in found.items()}


def shares(parts: dict[str, float]) -> tuple[float, float]:
    """The part of a cycle that is not the models', before and now."""
    models_ = parts["draft_models"] + parts["target"]
    same = parts["draws"] + parts["keep"]
    before, now = (same + parts[name] for name in ("verify_laws", "verify"))
    return before / (models_ + before), now / (models_ + now)
