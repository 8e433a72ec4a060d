"""Random streams by name: every case and batch has its own, whatever else runs or in what order."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import torch

from stattests.budget import ROOT_SEED


def seed_sequence(case: str, batch: int = 0, root: int = ROOT_SEED) -> np.random.SeedSequence:
    """The seed of a case's batch; the root alone replays a whole run."""
    return np.random.SeedSequence(root, spawn_key=(crc32(case.encode()), batch))


def numpy_generator(case: str, batch: int = 0, root: int = ROOT_SEED) -> np.random.Generator:
    """A NumPy generator for a case's batch."""
    return np.random.default_rng(seed_sequence(case, batch, root))


def torch_generator(case: str, batch: int = 0, root: int = ROOT_SEED) -> torch.Generator:
    """A torch generator (CPU) for a case's batch."""
    seed = int(seed_sequence(case, batch, root).generate_state(1, np.uint64)[0] >> 1)
    return torch.Generator().manual_seed(seed)


def seed_globals(case: str, root: int = ROOT_SEED) -> None:
    """Seed torch's and NumPy's global generators, for verifiers that draw from those.

    The one place where this is done: the harness's own draws never come from there.
    """
    words = seed_sequence(f"globals/{case}", root=root).generate_state(2, np.uint32)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))  # noqa: NPY002 - strangers may use the legacy generator
