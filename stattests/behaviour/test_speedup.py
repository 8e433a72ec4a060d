"""`python -m gpu_runs.speedup` and its parts, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from gpu_runs.speedup import chains, main, tokens_a_text
from gpu_runs.speedup_measured import Measured, hugging_face, ours
from gpu_runs.speedup_tables import HF_PLAIN, elsewhere, pooled
from stattests.behaviour.tiny_models import tiny_llama
from stattests.behaviour.tiny_runs import assert_one_sentence
from univer import Filters, Topology
from univer.cost_model import PLAIN, Costs, model_speeds
from univer.drafters.eagle import EagleHead
from univer.drafters.eagle_network import EagleNetwork
from univer.drafters.layer_skip import layer_skip

CHAIN, TREE = Topology.parse("chain:3"), Topology.parse("2x5")
COSTS = {PLAIN: Costs(0, 100, 0, 0), CHAIN: Costs(30, 120, 5, 5), TREE: Costs(50, 400, 10, 10)}
MODELLED = model_speeds({PLAIN: [1], CHAIN: [1.5, 2.5], TREE: [3]}, COSTS)
SHORT = ("--minutes", "0.02", "--prompts", "1", "--rounds", "1")


def speedup(*options: str) -> Result:
    threads = torch.get_num_threads()
    try:
        return CliRunner().invoke(main, options)
    finally:
        torch.set_num_threads(threads)


def test_lengths_decide_where_forwards_are_flat_and_costs_where_they_rise() -> None:
    for step, forward, best, speed in (
        (0.0, 1.0, TREE, 3.0),
        (0.1, 1.0, TREE, 3 / 1.5),
        (0.1, 5.0, CHAIN, 2 / (1 + 4 * 3 / 62 + 0.3)),
        (0.5, 5.0, PLAIN, 1.0),
    ):
        topology, found = elsewhere(MODELLED, step, forward)
        assert topology == best
        assert found == pytest.approx(speed)


def test_several_texts_make_one_table() -> None:
    costs = COSTS | {CHAIN: Costs(50, 140, 5, 5)}
    other = model_speeds({PLAIN: [1], CHAIN: [4], TREE: [3]}, costs)
    one = pooled([MODELLED, other, MODELLED])
    assert [row.length for row in one.rows] == pytest.approx([1, 12 / 5, 3])
    assert one.rows[1].length_error == pytest.approx(stdev([1.5, 2.5, 4, 1.5, 2.5]) / 5**0.5)
    assert one.rows[1].costs == COSTS[CHAIN]


def test_tokens_a_text_fill_the_time() -> None:
    ways = 0.1 + 0.16 / 2 + 0.47 / 3 + 0.1  # seconds a token, Hugging Face's plain one last
    assert tokens_a_text(MODELLED, 60, 2, False) == int(60 / (2 * 1.3 * ways))
    assert tokens_a_text(MODELLED, 60, 2, True) == int(60 / (2 * 1.3 * (ways + 0.08)))
    assert (tokens_a_text(MODELLED, -1, 2, True), tokens_a_text(MODELLED, 1e6, 2, True)) == (8, 128)
    assert chains(MODELLED) == [CHAIN]


def test_the_first_cycle_is_left_out_and_every_other_token_counted() -> None:
    target = tiny_llama(3)
    usual: dict[str, Any] = {"filters": Filters(), "tokens": 20}
    plain = hugging_face(target, [1, 2, 3], seed=0, **usual)
    assert (plain.tokens, plain.cycles, plain.length) == (19, 19, 1.0)
    # A drafter that is the target itself: all drafts are taken, four tokens a cycle.
    assisted = hugging_face(target, [1, 2, 3], assistant=target, drafts=3, seed=0, **usual)
    assert (assisted.tokens, assisted.cycles) == (16, 4)
    mine = ours(
        target,
        target,
        [1, 2, 3],
        CHAIN,
        verifier="univer",
        generator=torch.Generator().manual_seed(0),
        **usual,
    )
    assert (mine.tokens, mine.cycles) == (16, 4)
    assert min(plain.milliseconds, assisted.milliseconds, mine.milliseconds) > 0
    total = plain + assisted + Measured()
    assert (total.tokens, total.cycles) == (35, 23)


def test_an_assistant_and_torchs_stream_are_left_as_they_were() -> None:
    target = tiny_llama(3, layers=4)
    skip, state = layer_skip(target, 1), torch.get_rng_state()
    before = skip.generation_config.to_dict()
    options: dict[str, Any] = {"assistant": skip, "drafts": 2, "seed": 5}
    found = hugging_face(target, [1, 2], filters=Filters(0.0), tokens=9, **options)
    assert found.tokens <= 8
    assert skip.generation_config.to_dict() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_the_command_shows_both_sides(model: str, tmp_path: Path) -> None:
    target = tiny_llama(3, vocabulary=12, layers=4, dtype=torch.float32, max_positions=256)
    EagleHead(EagleNetwork(target.config).eval()).save_pretrained(tmp_path / "head")
    drafters = ("skip:1", f"eagle:{tmp_path / 'head'}")
    found = tmp_path / "found.json"
    done = speedup(
        *SHORT,
        "--model",
        model,
        "--drafter",
        drafters[0],
        "--drafter",
        drafters[1],
        "--topology",
        "2x2",
        "--topology",
        "chain:2",
        "--json",
        str(found),
        "--threads",
        "1",
    )
    assert done.exit_code == 0, done.output
    assert done.output.count("elsewhere: the fastest topology") == 2
    assert done.output.count("an EAGLE head, which reads the target's features, cannot") == 1
    results = json.loads(found.read_text())
    assert (results["device"].split()[0], results["threads"]) == ("cpu", 1)
    for name in drafters:
        part = results["drafters"][name]
        assert [row["topology"] for row in part["modelled"]] == ["none", "2x2", "chain:2"]
        ways = {"none", "2x2", "chain:2", HF_PLAIN}
        assert set(part["measured"]) - ways == (
            {"Hugging Face assisted, 2"} if name == "skip:1" else set()
        )
        assert part["chosen"] in part["reason"]
        assert part["measured"]["none"]["speed_up"] == 1
        assert all(1 <= row["length"] <= 3 for row in part["modelled"])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--minutes", "0"), ("minutes", "got 0")),
        (("--prompts", "0"), ("prompts", "got 0")),
        (("--rounds", "0"), ("rounds", "got 0")),
        (("--verifier", "best"), ("verifier", "'best'")),
        (("--drafter", "skip:x"), ("drafter", "'skip:x'")),
        (("--topology", "2by2"), ("topology", "'2by2'")),
        (("--json", "/no/such/folder/file"), ("output", "/no/such/folder")),
        (("--temperature", "-1"), ("temperature", "-1")),
        (("--model", "./no/model"), ("model", "./no/model")),
    ],
    ids=str,
)
def test_a_wrong_option_is_one_sentence(options: tuple[str, str], parts: tuple[str, ...]) -> None:
    assert_one_sentence(speedup(*options), *parts)
