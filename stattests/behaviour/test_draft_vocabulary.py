"""A reduced draft vocabulary: which logits it leaves, what it may not change, where ids come from.

Letters: T trees, N nodes, I internal nodes, V vocabulary, K draft vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gpu_runs.eagle_texts import Chat, write_chats
from gpu_runs.frequent_tokens import main
from gpu_runs.loading import Pair, load_head
from gpu_runs.models import LoadedModel
from stattests.behaviour.test_eagle import TEXT, TOLERANCE, drafted, models
from stattests.behaviour.tiny_models import plain_logits
from stattests.behaviour.tiny_runs import assert_one_sentence
from stattests.exact import ExactLaw, drafted_trees, law_of_stops
from stattests.problems import Problem
from univer import PAPER, VERIFIERS, InputError, Topology, stop_law
from univer.cached_model import CachedModel
from univer.decoding import generate
from univer.drafters.draft_vocabulary import most_frequent
from univer.drafters.eagle import EagleHead, ReducedHead
from univer.drafting import DraftTree

KEPT = (6, 1, 3)  # of 8, and not in order


class ModelProblem:
    """A tiny target and a head behind TEXT, as the exact certification reads a problem."""

    stops = 0.0

    def __init__(self, topology: str, kept: Sequence[int] | None):
        self._target, head = models()
        self.topology, self.vocab = Topology.parse(topology), 8
        self._session = EagleHead(head.network, kept).start(CachedModel(self._target))
        self._laws: dict[tuple[str, tuple[int, ...]], NDArray[np.float64]] = {}

    def target_law(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """The target's law after TEXT and this prefix, [V]."""
        if (law := self._laws.get(("target", tuple(prefix)))) is not None:
            return law
        rows = plain_logits(self._target, [*TEXT, *prefix])
        return self._laws.setdefault(("target", tuple(prefix)), rows[-1].softmax(0).numpy())

    def draft_law(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """The draft law there, by the session itself along the chain of this path, [V]."""
        if (law := self._laws.get(("draft", tuple(prefix)))) is not None:
            return law
        chain = Topology((-1, *range(len(prefix))))
        tree = DraftTree(chain, torch.tensor([[TEXT[-1], *prefix]]))
        self._session.keep()
        rows = [self._session.logits(TEXT, tree, (node,))[0, 0] for node in range(chain.num_nodes)]
        return self._laws.setdefault(("draft", tuple(prefix)), rows[-1].softmax(0).numpy())


def output_law(problem: ModelProblem, verifier: str, told: ModelProblem | None = None) -> ExactLaw:
    """The exact law of a cycle; the verifier is told the draft laws of `told` (None: the drawn)."""
    given = cast(Problem, problem)
    tokens, chances = drafted_trees(given, VERIFIERS[verifier].drafting)
    topology = problem.topology

    def laws(of: Callable[[tuple[int, ...]], Any], nodes: Sequence[int]) -> Tensor:
        paths = [[tuple(t[v] for v in topology.path(n)) for n in nodes] for t in tokens.tolist()]
        return torch.from_numpy(
            np.stack([[of(p if -1 not in p else ()) for p in row] for row in paths])
        )

    target = laws(lambda p: problem.target_law(p), range(topology.num_nodes))
    draft = laws(lambda p: (told or problem).draft_law(p), topology.internal)
    law = stop_law(verifier, DraftTree(topology, tokens), target, draft)
    return law_of_stops(
        given, tokens, chances, law.stop_probs.numpy(), law.next_token_probs().numpy()
    )


@pytest.mark.parametrize("kept", [KEPT, (2, 5), (4,)], ids=str)
@pytest.mark.parametrize("topology", ["2x2", "chain:2", "3x1"])
@pytest.mark.parametrize("verifier", PAPER)
def test_output_law_is_target_exactly(verifier: str, topology: str, kept: tuple[int, ...]) -> None:
    """Two ids are fewer than three children, and one id leaves a one-hot draft law."""
    problem = ModelProblem(topology, kept)
    outside = 1 - sum(problem.target_law(())[token] for token in kept)
    assert outside > 0.2  # mass that no draft can bring
    law = output_law(problem, verifier)
    assert abs(law.total - 1) < TOLERANCE
    assert law.joint_tv() < TOLERANCE
    assert law.expected_accepted > 0.1


@pytest.mark.parametrize("verifier", PAPER)
def test_a_verifier_told_the_whole_heads_laws_is_noticed(verifier: str) -> None:
    told = ModelProblem("2x2", None)
    assert output_law(ModelProblem("2x2", KEPT), verifier, told).joint_tv() > 1e-2


def test_kept_logits_are_the_whole_heads_and_the_others_minus_infinity() -> None:
    target, whole = models()
    reduced = EagleHead(whole.network, KEPT)
    tree, rows = drafted(reduced.start(CachedModel(target)), TEXT, "2x3", "top_residual")
    session, expected = whole.start(CachedModel(target)), []
    for level in tree.topology.levels[:-1]:
        expected.append(session.logits(TEXT, tree, level)[0])
    others = [token for token in range(8) if token not in KEPT]
    torch.testing.assert_close(rows[:, KEPT], torch.cat(expected)[:, KEPT], rtol=0, atol=TOLERANCE)
    assert (rows[:, others] == -torch.inf).all()
    assert set(tree.tokens[0, 1:].tolist()) <= {*KEPT, -1}


def test_only_the_kept_rows_of_the_lm_head_are_multiplied() -> None:
    head, features = torch.nn.Linear(16, 8).double(), torch.ones(1, 2, 16).double()
    counts = []
    for rows in (head, ReducedHead(head, KEPT)):
        with FlopCounterMode(display=False) as counter:
            logits = rows(features)
        counts.append(counter.get_total_flops())
    assert counts == [2 * 2 * 16 * 8, 2 * 2 * 16 * len(KEPT)]
    torch.testing.assert_close(logits[..., KEPT], head(features)[..., KEPT], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("verifier", PAPER)
def test_temperature_0_gives_the_greedy_text(verifier: str) -> None:
    target, head = models()
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 20, "seed": 0}
    plain = generate(target, head, TEXT, topology="none", **options)
    for kept in (KEPT, (4,)):
        reduced = EagleHead(head.network, kept)
        done = generate(target, reduced, TEXT, verifier=verifier, topology="3x2", **options)
        assert done.tokens == plain.tokens


def test_ids_are_kept_in_the_published_form(tmp_path: Path) -> None:
    target, whole = models()
    EagleHead(whole.network, KEPT).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] == 3
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["d2t"].tolist() == [6, 0, 1]  # what each place is short of its id
    assert EagleHead.from_pretrained(tmp_path, target).draft_vocabulary == KEPT
    other = EagleHead.from_pretrained(tmp_path, target, draft_vocabulary=[5])
    assert other.draft_vocabulary == (5,)
    marks = torch.zeros(8, dtype=torch.bool).index_fill(0, torch.tensor(KEPT), True)
    save_file(weights | {"t2d": marks}, tmp_path / "model.safetensors")
    assert EagleHead.from_pretrained(tmp_path, target).draft_vocabulary == KEPT


SPOILT: dict[str, tuple[dict[str, Any], dict[str, Tensor], str]] = {
    "no mapping": ({"draft_vocab_size": 3}, {}, r"draft_vocab_size = 3, but its weights lack d2t"),
    "other size": ({"draft_vocab_size": 4}, {"d2t": torch.tensor([6, 0, 1])}, r"d2t .* is 4\."),
    "fractions": ({}, {"d2t": torch.ones(3)}, r"d2t is torch\.float32 \[3\]"),
    "out of range": ({}, {"d2t": torch.tensor([0, 7])}, r"entry 1 is 8; .* in \[0, 8\)"),
    "twice": ({}, {"d2t": torch.tensor([3, 2])}, "token id 3 is given twice"),
    "other marks": (
        {},
        {"d2t": torch.tensor([3, 0]), "t2d": torch.ones(8, dtype=torch.bool)},
        "t2d does not mark the ids that d2t names",
    ),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_spoilt_mapping_is_refused(fault: str, tmp_path: Path) -> None:
    target, head = models()
    head.save_pretrained(tmp_path)
    fields, tensors, sentence = SPOILT[fault]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=sentence):
        EagleHead.from_pretrained(tmp_path, target)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([], "it is empty"),
        ([1, 8], r"entry 1 is 8; expected a token id in \[0, 8\)"),
        ([-1], "entry 0 is -1"),
        ([1.0], r"entry 0 is 1\.0"),
        (torch.tensor([True]), "entry 0 is True"),
        ([2, 1, 2], "token id 2 is given twice"),
        ({1, 2}, "expected token ids, got set"),
    ],
    ids=str,
)
def test_ids_that_are_no_draft_vocabulary_are_refused(ids: Any, sentence: str) -> None:
    _, head = models()
    with pytest.raises(InputError, match=sentence):
        EagleHead(head.network, ids)


def test_a_file_of_ids_beside_a_head_is_read_and_marks_the_run(tmp_path: Path) -> None:
    target, head = models()
    head.save_pretrained(tmp_path)
    (tmp_path / "ids.json").write_text("[6, 1, 3]")
    torch.save([6, 1, 3], tmp_path / "ids.pt")
    prints = []
    for name in ("", "ids.json", "ids.pt"):
        loaded = load_head(tmp_path, target, name and str(tmp_path / name))
        assert loaded.draft_vocabulary == (KEPT if name else None)
        prints.append(Pair(LoadedModel("tiny", target, None), loaded).fingerprints()["drafter"])
    assert prints[0] != prints[1] == prints[2]
    for text, sentence in (
        ("[6,", "cannot read .*ids.json"),
        ('"6"', "expected token ids, got str"),
    ):
        (tmp_path / "ids.json").write_text(text)
        with pytest.raises(InputError, match=sentence):
            load_head(tmp_path, target, str(tmp_path / "ids.json"))
    with pytest.raises(InputError, match=r"cannot read .*gone\.json"):
        load_head(tmp_path, target, str(tmp_path / "gone.json"))


def test_the_most_frequent_tokens_are_counted_over_all_texts() -> None:
    assert most_frequent([[7, 2], [2, 7, 7], [0]], 2) == (7, 2)
    assert most_frequent([[7, 2], [0]], 9) == (0, 2, 7)
    with pytest.raises(InputError, match="size: expected an integer >= 1, got 0"):
        most_frequent([[1]], 0)


def test_the_command_writes_the_most_frequent_tokens_after_the_prompts(tmp_path: Path) -> None:
    chats = [Chat((9, 9, 9, 4, 4, 2), 3), Chat((9, 2, 4, 7), 1)]
    write_chats(tmp_path / "texts.npz", {"train": chats, "heldout": [Chat((9, 4, 4, 7, 9), 1)]})
    paths = [str(tmp_path / name) for name in ("texts.npz", "ids.json")]
    done = CliRunner().invoke(main, [*paths, "--size", "2"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "ids.json").read_text()) == [4, 2]
    assert "50.0% of the held-out tokens" in done.output
    assert_one_sentence(CliRunner().invoke(main, [*paths, "--size", "0"]), "size: expected")
    assert_one_sentence(CliRunner().invoke(main, [str(tmp_path / "no"), paths[1]]), "text.file")
