"""`python -m reports`: its numbers are those of the rows, and all that it promises is there."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from math import log, sqrt
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib", reason="the extra `reports` is not installed")
pytest.importorskip("jinja2", reason="the extra `reports` is not installed")

from gpu_runs.tables import BET_TOKENS as BETS_OF_RUNS
from gpu_runs.tables import evidence as evidence_of_values
from reports.__main__ import main
from reports.documents import read_faults
from reports.losslessness import BET_TOKENS, evidence
from reports.names import shape
from reports.optima import read_toy_optima
from stattests.behaviour import HANGS
from stattests.behaviour.synthetic_runs import GAIN, SETTINGS, rows, write_run
from stattests.etest import pit_counts
from univer import Topology

ROOT = Path(__file__).resolve().parents[2]
FIGURES = (
    *("by-verifier", "by-category", "by-depth", "by-size", "by-temperature"),
    *("univer-less-greedy", "accepted", "acceptance-rate", "pit", "log-e"),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a paired run, a decoding run and a theorem report."""
    folder = tmp_path_factory.mktemp("results")
    write_run(folder / "both", rows())
    write_run(folder / "alone", rows("decoding", settings=SETTINGS[:1]), "decoding")
    finding = {"claim": "Theorem 6 <b>", "found": "+0.1", "bound": ">= 0", "n": 3, "unit": "trees"}
    findings = [
        finding | {"holds": True, "undecided": False},
        finding | {"holds": False, "undecided": True},
    ]
    report = {"target": "tiny", "drafter": "head", "plan": {}, "held": False, "findings": findings}
    (folder / "theorems.json").write_text(json.dumps(report))
    return folder


@pytest.fixture(scope="module")
def made(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on them."""
    output = tmp_path_factory.mktemp("report") / "out"
    done = CliRunner().invoke(main, [str(results), "-o", str(output)])
    assert done.exit_code == 0, done.output
    return output


def table(made: Path, name: str) -> list[dict[str, str]]:
    with (made / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_all_figures_and_tables_exist_in_all_forms(made: Path) -> None:
    names = {f"both-{kind}" for kind in FIGURES} | {"alone-times", "toy-optima", "faults"}
    found = {path.stem for path in (made / "figures").iterdir()}
    assert names <= found
    for folder, endings in (("figures", ("svg", "png")), ("tables", ("csv", "md", "tex"))):
        for name in {path.stem for path in (made / folder).iterdir()}:
            for ending in endings:
                assert (made / folder / f"{name}.{ending}").stat().st_size > 50


def test_every_table_says_that_the_next_token_is_counted(made: Path) -> None:
    for ending in ("md", "tex"):
        for path in (made / "tables").glob(f"*.{ending}"):
            assert "next token" in path.read_text(encoding="utf-8"), path.name


def test_lengths_are_those_recomputed_from_the_rows(made: Path, results: Path) -> None:
    """A short script that shares nothing with the reports."""
    files = pl.read_parquet(results / "both" / "part-*.parquet")
    own = files.filter((pl.col("topology") == "2x5") & (pl.col("temperature") == 0.6))
    wide = own.pivot("verifier", index=["unit", "cycle", "prompt_id"], values="expected_accepted")
    seen = {row["verifier"]: row for row in table(made, "lengths-both-2x5-T-0.6")}
    labels = {"rrsw": "RRSw", "traversal": "Traversal", "greedy": "Greedy", "univer": "UniVer"}
    for name, label in labels.items():
        x = wide[name].to_numpy()
        assert float(seen[label]["average"]) == pytest.approx(1 + x.mean(), abs=1e-9)
        gain = (wide[name] - wide["rrsw"]).to_numpy()
        sums = [
            (gain - gain.mean())[(wide["prompt_id"] == p).to_numpy()].sum()
            for p in wide["prompt_id"].unique()
        ]
        if name != "rrsw":
            column = "change against RRSw"
            assert float(seen[label][column]) == pytest.approx(gain.mean(), abs=1e-9)
            error = sqrt(len(sums) / (len(sums) - 1) * sum(s * s for s in sums)) / len(gain)
            assert float(seen[label][f"{column} (standard error)"]) == pytest.approx(error)
        qa = own.filter((pl.col("verifier") == name) & (pl.col("category") == "qa"))
        mean = qa["expected_accepted"].to_numpy().mean()
        assert float(seen[label]["QA"]) == pytest.approx(1 + mean)


def test_speed_is_that_recomputed_from_the_rows(made: Path, results: Path) -> None:
    files = pl.read_parquet(results / "alone" / "part-*.parquet")
    times = pl.sum_horizontal("draft_ms", "target_ms", "verify_ms", "keep_ms").sum()
    speeds = dict(
        files.group_by("verifier").agg(1e3 * pl.col("pit").list.len().sum() / times).iter_rows()
    )
    for row in table(made, "speed-alone-2x5-T-1"):
        name = row["way of decoding"].split()[0].lower()
        assert float(row["tokens a second"]) == pytest.approx(speeds[name])
        against = float(row["against plain"])
        assert against == pytest.approx(speeds[name] / speeds["plain"])
        lengths = files.filter(pl.col("verifier") == name)["num_accepted"].to_numpy().mean()
        assert float(row["acceptance length"]) == pytest.approx(1 + lengths)


def test_evidence_is_that_of_all_values_at_once(made: Path, results: Path) -> None:
    files = pl.read_parquet(results / "both" / "part-*.parquet")
    for row in table(made, "losslessness"):
        if (row["run"], row["written by"]) == ("both", "UniVer"):
            own = files.filter((pl.col("verifier") == "univer") & pl.col("drives_text"))
            values = own["pit"].explode().to_list()
            assert float(row["tokens"]) == len(values)
            assert float(row["largest log10 E"]) >= evidence_of_values(values) / log(10) - 1e-9
            excess = -np.array(own["log_prob"].explode()) - np.array(own["entropy"].explode())
            column = "surprisal - entropy, nats a token"
            assert float(row[column]) == pytest.approx(excess.mean())


def test_distances_to_the_optimum_are_those_of_the_file(made: Path) -> None:
    rows = [row for row in read_toy_optima().rows if row["topology"] == "2x2"]
    (found,) = (row for row in table(made, "toy-optima-top-residual") if row["tree"] == "2x2")
    far, near = (
        np.mean([row["optimum"]["top_residual"] - row["accepted"][name] for row in rows])
        for name in ("greedy", "univer")
    )
    assert float(found["optimum - Greedy"]) == pytest.approx(far)
    assert float(found["optimum - UniVer"]) == pytest.approx(near)
    assert float(found["closed by UniVer"]) == pytest.approx(100 * (1 - near / far))
    (laws,) = (row for row in table(made, "toy-optima") if row["tree"] == "2x2")
    best = np.mean([row["optimum"]["without_replacement"] for row in rows])
    assert float(laws["without_replacement"]) == pytest.approx(1 + best)


def test_the_bets_are_those_of_the_runs() -> None:
    values = (np.random.default_rng(0).random(500) ** 1.3).tolist()
    assert BET_TOKENS == BETS_OF_RUNS
    assert evidence(pit_counts(values)) == pytest.approx(evidence_of_values(values) / log(10))


@pytest.mark.parametrize(("bias", "verdict"), [(1.0, "passed"), (2.0, "BIASED")])
def test_a_biased_text_is_called_so(tmp_path: Path, bias: float, verdict: str) -> None:
    frame = rows(prompts=16, settings=SETTINGS[:1], verifiers=("univer",), bias=bias)
    folder = write_run(tmp_path / "run", frame)
    done = CliRunner().invoke(main, [str(folder), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert {row["verdict"] for row in table(tmp_path / "out", "losslessness")} == {verdict}
    assert ("NOT LOSSLESS" in (tmp_path / "out" / "index.html").read_text()) == (bias > 1)


def test_the_same_input_gives_the_same_bytes(made: Path, results: Path) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    done = CliRunner().invoke(main, [str(results), "-o", str(made)])
    assert done.exit_code == 0
    assert before == {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}


class Page(HTMLParser):
    """What the page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        self.tags.append((tag, dict(attrs)))

    def of(self, tag: str, key: str) -> list[str]:
        """The values of an attribute."""
        return [value for t, attrs in self.tags if t == tag and (value := attrs.get(key))]


def test_the_page_is_self_contained_and_accessible(made: Path) -> None:
    text = (made / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("script", "iframe", "object")]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.of("img", "src"))
    figures = len(list((made / "figures").glob("*.svg")))
    assert len([alt for alt in page.of("img", "alt") if len(alt) > 40]) == figures
    anchors = set(page.of("h2", "id")) | set(page.of("figure", "id"))
    for link in page.of("a", "href"):
        assert link[1:] in anchors if link.startswith("#") else (made / link).is_file(), link
    tables = [tag for tag, _ in page.tags if tag in ("table", "caption")]
    assert tables.count("table") == tables.count("caption")
    assert all(scope in ("col", "row") for scope in page.of("th", "scope"))
    assert "prefers-color-scheme: dark" in text
    assert "Theorem 6 &lt;b&gt;" in text
    assert "1 yes, 1 open" in text
    assert "What is not shown" in text
    assert "part-*.parquet" in text
    assert re.search(r"<code>python -m reports \S+ -o \S+</code>", text)


@pytest.fixture
def browser(tmp_path: Path) -> list[str]:
    """The command that prints what a page holds once it is open."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), "")
    if not found:
        pytest.skip("no Chromium here: apt-get install chromium")
    options = ["headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "v=0"]
    options += ["enable-logging=stderr", "dump-dom", "virtual-time-budget=5000"]
    options.append(f"user-data-dir={tmp_path / 'profile'}")
    return [found, *(f"--{option}" for option in options)]


def opened(browser: list[str], page: Path) -> str:
    done = subprocess.run(
        [*browser, page.as_uri()], capture_output=True, text=True, timeout=HANGS, check=True
    )
    assert "CONSOLE" not in done.stderr
    return done.stdout


def test_the_page_opens_in_a_browser_without_an_error(made: Path, browser: list[str]) -> None:
    page = opened(browser, made / "index.html")
    assert page.count("<img") == len(list((made / "figures").glob("*.svg")))


def test_nothing_sticks_out_of_a_screen_400_pixels_wide(
    made: Path, browser: list[str], tmp_path: Path
) -> None:
    """A browser's window is wider: the page stands in a frame and says how wide it became."""
    says = "<script>parent.postMessage(document.documentElement.scrollWidth, '*')</script></body>"
    page = (made / "index.html").read_text(encoding="utf-8")
    page = page.replace("<details>", "<details open>").replace("</body>", says)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        "<p></p><script>onmessage = said => document.querySelector('p').textContent = said.data"
        "</script><iframe src='page.html' style='width: 400px; height: 900px; border: 0'></iframe>"
    )
    assert "<p>400</p>" in opened(browser, tmp_path / "frame.html")


def test_a_comparison_says_what_became_longer(tmp_path: Path) -> None:
    settings = SETTINGS[:1]
    write_run(tmp_path / "old" / "run", rows(settings=settings, prompts=8))
    better = GAIN | {"univer": GAIN["univer"] + 0.3}
    write_run(tmp_path / "new" / "run", rows(settings=settings, prompts=8, gain=better), tokens=9)
    for side, mark in (("old", 1), ("new", 2)):
        record = json.loads((tmp_path / side / "run" / "run.json").read_text())
        marks = {"prompts": {"qa-0": mark, "qa-1": 0}, "fingerprints": {"drafter": mark}}
        (tmp_path / side / "run" / "run.json").write_text(json.dumps(record | marks))
    command = [str(tmp_path / "new"), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*command, "--against", str(tmp_path / "old")])
    assert done.exit_code == 0, done.output
    found = {row["verifier"]: row for row in table(tmp_path / "out", "comparison")}
    assert found["UniVer"]["verdict"] == "longer"
    assert float(found["UniVer"]["change"]) == pytest.approx(0.3)
    assert found["Greedy"]["verdict"] == "the same"
    page = (tmp_path / "out" / "index.html").read_text()
    assert "1 longer, 3 the same, of 4 comparisons" in page
    assert "tokens was 8 and is 9" in page
    assert "other texts behind prompts qa-0: not the same experiment" in page
    assert "other weights of drafter: not the same experiment" in page


@pytest.mark.parametrize("spec", ["2x5", "3x3", "chain:4", "eagle", "[[0], [1], [0, 0]]"])
def test_sizes_of_trees_are_those_of_their_topologies(spec: str) -> None:
    topology = Topology.parse(spec)
    assert shape(spec) == (topology.num_nodes - 1, topology.depth)


def test_committed_inputs_are_what_they_should_be() -> None:
    toys = read_toy_optima()
    for row in toys.rows:
        accepted, best = row["accepted"], row["optimum"]
        assert accepted["greedy"] - 1e-9 <= accepted["univer"]
        for drafting, verifiers in toys.verifiers().items():
            for name in accepted.keys() & {*verifiers}:
                assert accepted[name] <= best[drafting] + 1e-8, (row["topology"], name)
        if row["topology"].startswith("chain"):
            for name in ("univer", "traversal", "block_verification"):
                assert accepted[name] == pytest.approx(best["top_residual"], abs=1e-8)
    faults = read_faults()
    assert faults["name"].n_unique() > 100
    assert "CERTIFIED" not in faults.filter(pl.col("kind") != "look-alike")["verdict"]


@pytest.mark.skipif(
    not (ROOT / "gpu_runs" / "results").is_dir(), reason="no runs are committed in gpu_runs/results"
)
def test_the_committed_runs_make_a_report(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, [str(ROOT / "gpu_runs" / "results"), "-o", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output


# VmHWM is the peak of this program alone; ru_maxrss begins with what the test process held.
MEASURED = """
import re, sys, threading
from pathlib import Path
from reports.__main__ import make

calls = 0

def counted(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")

threading.setprofile(counted)
for folder in sys.argv[1:]:
    calls = 0
    sys.setprofile(counted)
    make([Path(folder)], Path(folder) / "out", [])
    sys.setprofile(None)
    print(calls)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux")
def test_a_million_rows_fit_into_a_gigabyte_and_cost_no_calls_of_their_own(tmp_path: Path) -> None:
    """What takes long in Python is what is done row by row; that is counted, not timed."""
    few = write_run(tmp_path / "few", rows(settings=SETTINGS[:3], prompts=10, cycles=20))
    many = Path(shutil.copytree(few, tmp_path / "many"))
    small = pl.read_parquet(few / "part-*.parquet")
    for path in many.glob("part-*"):
        path.unlink()
    times = -(-1_000_000 // len(small))
    for number in range(times):
        again = small.with_columns(
            pl.format("{}/{}", "unit", pl.lit(number)).alias("unit"), pl.lit(number).alias("seed")
        )
        again = again.with_columns(pl.col("seed").cast(pl.Int64))
        again.write_parquet(many / f"part-0-{number}.parquet", compression="lz4")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(few), str(many)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    calls_few, calls_many, kilobytes = map(int, re.findall(r"^\d+$", done.stdout, re.MULTILINE))
    assert calls_many - calls_few < 0.1 * times * len(small)
    assert kilobytes < 1024**2
