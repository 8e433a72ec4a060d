"""The fused path around its kernels: where it applies, what it compiles to, and its tests' start.

The kernels' own tests are in test_kernels.py. Where there is no CUDA device they need Triton's
interpreter, which must be chosen before Triton is imported: hence in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stattests.behaviour.test_verify import problem
from univer import VERIFIERS, fused

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="test_kernels.py runs on the device")
@pytest.mark.parametrize("which", ["univer", "not univer"])
def test_interpreted_kernels_equal_the_plain_path(which: str) -> None:
    """All of test_kernels.py, in two halves: a minute of interpreting altogether."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", which]
    done = subprocess.run(
        [*command, "stattests/behaviour/test_kernels.py"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


TYPES = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16",
    torch.float16: "*fp16", torch.int64: "*i64", torch.int32: "*i32",
}  # fmt: skip


def signature(kernel: Any, values: Mapping[str, Any]) -> tuple[dict[str, str], dict[Any, Any]]:
    """The types of a kernel's arguments, and its constants."""
    types, constants = {}, {}
    for parameter in kernel.params:
        value = values[parameter.name]
        if parameter.is_constexpr:
            types[parameter.name], constants[(parameter.num,)] = "constexpr", value
        elif isinstance(value, Tensor):
            types[parameter.name] = TYPES[value.dtype]
        else:
            types[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    return types, constants


@needs_triton
@pytest.mark.parametrize("dtype", fused.DTYPES, ids=str)
@pytest.mark.parametrize("name", ["greedy", "univer"])
def test_kernels_compile_for_a_gpu(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a Hopper GPU's machine code, which takes no GPU; nothing is fused, as OPTIONS asks."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    compiled = []

    def launch(kernel: Any, _: Any, values: Mapping[str, Any]) -> None:
        types, constants = signature(kernel, values)
        source = ASTSource(kernel, types, constants)
        done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=fused.OPTIONS)
        assert done.asm["cubin"]
        assert "fma.rn.f32" not in done.asm["ptx"]
        compiled.append(kernel)

    monkeypatch.setattr(fused, "_launch", launch)
    tree, target, draft, uniforms = problem(name, "eagle", batch=2, vocab=5000)
    values = fused.allocate(VERIFIERS[name], tree, target.to(dtype), draft.to(dtype), 1.0)
    fused.decide(values, uniforms)
    assert len(set(compiled)) == 7


def test_applies_where_kernels_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "runs_kernels", lambda _: True)
    tree, target, draft, _ = problem("univer", "2x2")
    single, half = target.float(), draft.half()
    for verifier in VERIFIERS.values():
        assert fused.applies(verifier, tree, single, half, 0.5) == (verifier.allocation == "ot")
    univer = VERIFIERS["univer"]
    assert not fused.applies(univer, tree, single, half, 0)
    assert not fused.applies(univer, tree, target, half, 1.0)  # float64
    assert not fused.applies(univer, tree, single, draft, 1.0)
    strange: Any = [0]
    assert not fused.applies(univer, tree, strange, half, 1.0)
    assert not fused.applies(univer, strange, single, half, 1.0)
    tree, target, draft, _ = problem("univer", "none")
    assert not fused.applies(univer, tree, target.float(), draft.float(), 1.0)


def test_the_cpu_takes_the_plain_path_unless_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "find_spec", lambda _: "there")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not fused.runs_kernels(CPU)
    assert fused.runs_kernels(torch.device("cuda"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert fused.runs_kernels(CPU)
    monkeypatch.setattr(fused, "find_spec", lambda _: None)
    assert not fused.runs_kernels(CPU)
    assert not fused.runs_kernels(torch.device("cuda"))


def test_triton_is_not_needed() -> None:
    """`import univer`, and `univer.fused` too, where Triton cannot be imported."""
    code = "import sys; sys.modules['triton'] = None; import univer.fused, univer; univer.verify"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("spec", ["2x2", "eagle", "[[0],[1],[2],[1,0],[1,1],[1,0,0]]"])
def test_slots_hold_the_children_with_the_sampled_one_last(spec: str) -> None:
    topology = problem("univer", spec)[0].topology
    table = fused.tables(topology, CPU)
    for row, node in enumerate(topology.internal):
        children = tuple(slot for slot in table.slots[row].tolist() if slot >= 0)
        assert children == topology.children(node)
        assert table.slots[row, -1] == children[-1]
        assert table.row_of[node] == row
    assert torch.equal(torch.cat(table.levels), table.everything)
    assert (table.row_of >= 0).sum() == len(topology.internal)
