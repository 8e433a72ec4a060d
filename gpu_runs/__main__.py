"""`python -m gpu_runs <config.toml> [--resume]`, or the same behind `torchrun ... -m gpu_runs`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from gpu_runs.command import one_sentence
from gpu_runs.configuration import read_config
from gpu_runs.ranks import Ranks
from gpu_runs.run import run


@click.command(context_settings={"max_content_width": 100})
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True, help="Go on with the run in the folder.")
@click.option("--output", help="The run's folder, in place of the configuration's.")
@click.option("--questions", help="Spec-Bench's question.jsonl, in place of the configuration's.")
def main(config: Path, resume: bool, **instead: str | None) -> None:
    """Run verifiers on a language model as a TOML file says; rows go to Parquet files."""
    with one_sentence("interrupted; go on with --resume."):
        ranks = Ranks.join()
        given = ranks.together(lambda: read_config(config, **instead))
        run(given, resume=resume, ranks=ranks, console=Console(quiet=not ranks.first))


if __name__ == "__main__":
    main()
