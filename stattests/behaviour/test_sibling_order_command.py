"""`python -m gpu_runs.sibling_order` as users call it: its table, its JSON and bad options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_runs.sibling_order import DRAWN, ORDERS, main
from stattests.behaviour.tiny_runs import assert_one_sentence


def command(model: str, *arguments: str) -> Result:
    chosen = ("--target", model, "--drafter", "skip:1", "--contexts", "3", "--topology", "2x2")
    return CliRunner().invoke(main, [*chosen, *arguments])


def test_every_order_judges_every_tree(model: str, tmp_path: Path) -> None:
    output = tmp_path / "orders.json"
    result = command(model, "--topology", "[[0],[1],[0,0]]", "--json", str(output))
    assert result.exit_code == 0, result.output
    found = json.loads(output.read_text())
    shapes = ["2x2", "[[0],[1],[0,0]]", "[[0],[1],[0,0]], mirrored"]  # 2x2 is its own mirror image
    assert [row["topology"] for row in found["rows"]] == 3 * shapes
    assert all({*ORDERS} <= {*row} for row in found["rows"])
    for line in found["summary"]:
        rows = [row for row in found["rows"] if row["topology"] == line["topology"]]
        values = [row[line["order"]] - (line["order"] != DRAWN) * row[DRAWN] for row in rows]
        assert line["mean"] == pytest.approx(sum(values) / 3)
    assert all(name in result.output for name in ORDERS)


BAD = {
    "contexts": (("--contexts", "0"), ("contexts", "got 0")),
    "topology": (("--topology", "2by2"), ("topology", "'2by2'")),
    "none": (("--topology", "none"), ("topology", "'none'")),
    "temperature": (("--temperature", "-1"), ("temperature", "-1")),
    "json": (("--json", "/no/such/folder/x.json"), ("output", "/no/such/folder")),
    "target": (("--target", "./nothing"), ("model", "./nothing")),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_option_is_one_sentence_and_exit_code_2(case: str, model: str) -> None:
    arguments, parts = BAD[case]
    assert_one_sentence(command(model, *arguments), *parts)
