# Everything needs only Python >= 3.11, make and a package index: each target sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

BUDGET ?= pr

.PHONY: help demo test lint gate reports bench clean

help:
	@echo "make demo    the paper's four verifiers on a real language model, a table and a verdict (minutes)"
	@echo "             options: make demo ARGS='--minutes 1 --topology 3x3'; ARGS=--help lists them"
	@echo "make test    lint, types, doctests and tests on all cores"
	@echo "make gate    certify every verifier; BUDGET=smoke, pr (the default) or nightly"
	@echo "make reports figures, tables and one page from the committed runs, into reports/out"
	@echo "make bench   what verification costs, as ratios to reading the logits; ARGS=--help lists options"
	@echo "make lint    ruff and mypy alone"
	@echo "make clean   remove the virtual environment and caches"

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    f"UniVer needs Python 3.11 or later; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=.")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[llm,reports,test,dev]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m gpu_runs.demo $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n auto $(ARGS)

# Every row of VERIFIERS runs, as many at once as there are cores; any failure fails the target.
gate: $(VENV)/.installed
	$(BIN)/python -m stattests.every --budget $(BUDGET) $(ARGS)

# RUNS names other runs: make reports RUNS='runs/mine runs/other' ARGS='--against runs/before'
RUNS ?= gpu_runs/results
reports: $(VENV)/.installed
	$(BIN)/python -m reports $(RUNS) -o reports/out $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python -m univer.bench $(ARGS)

clean:
	rm -rf $(VENV) reports/out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
