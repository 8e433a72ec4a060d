"""The decoding loop on the embedded language model, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpu_runs.loading import load_head
from gpu_runs.models import LoadedModel, load_model
from gpu_runs.named_drafters import FREQUENT, HEAD
from gpu_runs.prompts import read_prompts
from stattests.behaviour.tiny_models import LAW_TOLERANCE, plain_logits
from univer import Filters
from univer.decoding import Auto, decode, generate
from univer.drafters.eagle import EagleHead
from univer.drafters.layer_skip import layer_skip

pytestmark = pytest.mark.llm

TOKENS = 24
FILTERS = Filters(0.7, top_k=50)


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model()


@pytest.fixture(scope="module")
def prompt(smollm2: LoadedModel) -> list[int]:
    question = next(p for p in read_prompts() if p.category == "question_answering")
    return question.token_ids(smollm2.tokenizer)


@pytest.fixture(scope="module")
def greedy_text(smollm2: LoadedModel, prompt: list[int]) -> list[int]:
    """The greedy text by transformers' own loop."""
    ids = torch.tensor([prompt])
    done = smollm2.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS
    )
    text: list[int] = done[0, len(prompt) :].tolist()
    return text


# One of each draft law, rule and composition: that all of them do is shown on tiny models.
@pytest.mark.parametrize("verifier", ["rrsw", "univer"])
def test_temperature_0_gives_the_greedy_text(
    verifier: str, smollm2: LoadedModel, prompt: list[int], greedy_text: list[int]
) -> None:
    done = generate(
        smollm2.model,
        layer_skip(smollm2.model, 12),
        prompt,
        verifier=verifier,
        topology="2x3",
        temperature=0.0,
        max_new_tokens=TOKENS,
        seed=0,
    )
    assert list(done.tokens) == greedy_text
    assert done.acceptance_length > 1  # drafts are accepted at all


def test_the_shipped_head_drafts_the_greedy_text(
    smollm2: LoadedModel, prompt: list[int], greedy_text: list[int]
) -> None:
    head = EagleHead.from_pretrained(HEAD, smollm2.model)
    assert (HEAD / "model.safetensors").stat().st_size < 10e6
    done = generate(
        smollm2.model, head, prompt, topology="2x3", temperature=0.0, max_new_tokens=TOKENS, seed=0
    )
    assert list(done.tokens) == greedy_text
    assert done.acceptance_length > 1.3


def test_the_reduced_head_on_changing_topologies_drafts_the_greedy_text(
    smollm2: LoadedModel, prompt: list[int], greedy_text: list[int]
) -> None:
    head = load_head(HEAD, smollm2.model, str(FREQUENT))
    assert len(head.draft_vocabulary or ()) == 8192
    auto = Auto(("2x2", "eagle"), rounds=1)
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": TOKENS, "seed": 0}
    done = generate(smollm2.model, head, prompt, topology=auto, **options)
    assert list(done.tokens) == greedy_text
    assert done.choice is not None
    assert done.choice.rows[2].length > 1.3


def test_laws_equal_plain_forwards(smollm2: LoadedModel, prompt: list[int]) -> None:
    text = list(prompt)
    for cycle in decode(
        smollm2.model,
        layer_skip(smollm2.model, 12),
        prompt,
        topology="2x2",
        filters=FILTERS,
        max_new_tokens=8,
        generator=torch.Generator().manual_seed(0),
    ):
        tree = cycle.drawn.tree
        for leaf in tree.topology.leaves:
            nodes = [0, *tree.topology.path(leaf)]
            ids = [*text, *(int(tree.tokens[0, v]) for v in nodes[1:])]
            expected = FILTERS(plain_logits(smollm2.model, ids)[-len(nodes) :])
            found = cycle.drawn.target_probs[0, nodes]
            tolerance = LAW_TOLERANCE[torch.float32]
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
        text += cycle.record.tokens


def test_a_chat_prompt_ends_where_the_model_answers(smollm2: LoadedModel) -> None:
    talk = read_prompts()[0]
    text = smollm2.tokenizer.decode(talk.token_ids(smollm2.tokenizer))
    assert text.endswith("<|im_start|>assistant\n")
    assert all(part in text for part in (*talk.turns, *talk.answers))
