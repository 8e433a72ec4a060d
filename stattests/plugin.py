"""A pytest plugin: the `certify` fixture and `--univer-seed`.

    def test_my_verifier(certify):
        certify("my_engine.verify:TreeVerifier", budget="smoke")

It fails the test with the report's own words unless the verdict is CERTIFIED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--univer-seed`."""
    parser.getgroup("univer").addoption(
        "--univer-seed",
        type=int,
        default=None,
        help="root seed of univer's certifications; the default is fixed, any must pass",
    )


@pytest.fixture
def certify(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Certify a verifier in this process.

    The function takes a name in VERIFIERS, "module:attribute" or an object that follows the
    protocol, and the options of `stattests.gate.certify` (`budget` is `asked`); it returns the
    Report, or fails the test.
    """
    # Imported here, so that pytest starts without torch where nothing is certified.
    from stattests import budget as constants
    from stattests import gate
    from stattests.subject import load, of_object
    from stattests.verdict import Verdict

    given = request.config.getoption("--univer-seed")

    def run(verifier: Any, *, budget: str = "smoke", **options: Any) -> Any:
        subject = (
            load(verifier)
            if isinstance(verifier, str)
            else of_object(type(verifier).__name__, verifier)
        )
        options.setdefault("diagnose", False)  # a minute; `univer certify` does it
        options.setdefault("seed", constants.ROOT_SEED if given is None else given)
        report = gate.certify(subject, asked=budget, **options)
        if report.verdict is not Verdict.CERTIFIED:
            pytest.fail(
                f"{report.subject}: {report.verdict.name} ({report.detail});"
                f" seed {report.seed}, budget {report.budget}",
                pytrace=False,
            )
        return report

    return run
