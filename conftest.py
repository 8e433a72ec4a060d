"""Hypothesis profiles and the devices that tests run on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from hypothesis import HealthCheck, settings

# Kernels cannot be imported without Triton; test_kernels.py says so when it skips.
collect_ignore = [] if find_spec("triton") else ["univer/kernels.py"]

# The same examples on every machine: a failure is a finding, never a flake. `thorough` looks
# further, with fresh examples each time: pytest --hypothesis-profile thorough.
settings.register_profile(
    "default",
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "thorough", settings.get_profile("default"), max_examples=1000, derandomize=False
)
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two threads on a busy core can be ten times slower than one."""
    torch.set_num_threads(1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device there is; a missing one is skipped with its reason."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return torch.device(request.param)
