"""The benchmark: its yardsticks do what they say, figures come out, memory stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from univer import bench, verify_logits
from univer.bench_verify import NOISE, Problem, methods, nodes_read, problem, walk

CPU = torch.device("cpu")


def small(spec: str, batch: int = 2, repeats: int = 40) -> Problem:
    return problem(spec, 300, batch, torch.float32, CPU, repeats)


def test_the_walk_of_engines_is_rrsw() -> None:
    """The same uniforms, the same token: a yardstick that did less would be none."""
    given = small("2x3")
    assert NOISE > 0
    for i, uniforms in enumerate(given.uniforms):
        tree = given.trees["without_replacement"][i]
        out = verify_logits("rrsw", tree, given.target, given.draft, uniforms=uniforms)
        tokens = [walk(tree, given, b, uniforms[b]) for b in range(2)]
        assert tokens == out.next_token.tolist()


def test_local_verifiers_read_the_nodes_they_enter() -> None:
    given = small("2x3", batch=1)
    for i in range(20):
        read = {name: nodes_read(name, given, i) for name in ("rrsw", "greedy", "univer")}
        assert 1 <= read["rrsw"] <= 3
        assert 1 <= read["greedy"] <= 3
        assert 3 <= read["univer"] <= 7


def test_methods_are_timed_on_the_same_problem() -> None:
    pytest.importorskip("transformers")
    assert set(methods(small("chain:3", batch=1))) == {
        "softmax", "walk", "chain sampler", "rrsw", "traversal", "greedy", "univer",
    }  # fmt: skip
    assert {f"{name} by level" for name in ("rrsw", "traversal", "greedy", "univer")} < set(
        methods(small("2x2"))
    )


def test_figures_come_out(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    options = ["--topology", "2x2", "--vocab", "500", "--batch", "1", "--batch", "2"]
    result = CliRunner().invoke(
        bench.main, [*options, "--repeats", "2", "--no-cycle", "--json", str(file)]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert [line["batch"] for line in found["lines"]] == [1, 1, 2, 2]
    assert all(value > 0 for line in found["lines"] for value in line["milliseconds"].values())
    assert "univer" in result.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--topology", "2y5"], "topology: cannot read '2y5'"),
        (["--device", "abacus"], "--device: torch knows no device 'abacus' here"),
        (["--topology", "2x1", "--json", "no/such/folder/f.json"], "no/such/folder/f.json"),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], sentence: str) -> None:
    result = CliRunner().invoke(bench.main, [*options, "--vocab", "50", "--no-cycle"])
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_verification_needs_little_memory_beside_its_inputs() -> None:
    """Under a tenth of the inputs at batch 8, laws and logits; in a process of its own."""
    code = (
        "import torch; from univer.bench import memory; torch.set_num_threads(1);"
        " print(max(memory(64_000, 8, torch.device('cpu')).values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.1
