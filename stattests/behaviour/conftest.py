"""What the behaviour tests share."""

from __future__ import annotations

import pytest

from stattests.behaviour.tiny_models import save_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model; nobody writes to it."""
    return save_model(tmp_path_factory.mktemp("model"))
