# Every target installs what it needs, once: `.venv` is made with plain pip from constraints.txt and reused.
PYTHON ?= python3
BIN := .venv/bin
RUN ?= tinyworld
# They use both cores themselves.
WHOLE_RUN := tests/test_readme.py tests/test_whole_run.py

.PHONY: install test test-slow test-all quality tables docs clean
.DEFAULT_GOAL := test

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@echo "Set-up: installing torch, transformers, trl and the two harnesses into .venv (once; 7 GB, about 4 minutes)."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,eval,demo,docs,dev]"
	@touch $@

test: .venv/installed  ## fast tier: offline, no GPU, under 5 minutes
	$(BIN)/python -m pytest -m "not slow" -n 2 --durations=10 tests

test-slow: .venv/installed  ## README commands, kills, whole runs
	$(BIN)/python -m pytest -m "slow and not campaign" --durations=10 $(WHOLE_RUN)
	$(BIN)/python -m pytest -m "slow and not campaign" -n 2 --dist loadfile --durations=10 tests $(addprefix --ignore=,$(WHOLE_RUN))

test-all: .venv/installed  ## every test, campaigns of minutes each included
	$(BIN)/python -m pytest --durations=10 tests

quality: .venv/installed  ## what pre-commit checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tables: .venv/installed  ## rebuild tables, figures and report of results/$(RUN)
	$(BIN)/python -m eval.report.tables results/$(RUN)
	$(BIN)/python -m eval.report.page results/$(RUN)

docs: .venv/installed  ## the docs site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

clean:
	rm -rf .venv results site
