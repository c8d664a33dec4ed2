# Every target installs what it needs, once: `.venv` is made with plain pip from constraints.txt and reused.
PYTHON ?= python3
BIN := .venv/bin
AUDIT := .venv-audit/bin
export RUN ?= tinyworld
# Empty, they would put caches into the working directory.
unexport $(foreach name,HF_HOME XDG_CACHE_HOME,$(if $($(name)),,$(name)))
# It uses both cores itself; README's other commands then find its run.
WHOLE_RUN := tests/test_whole_run.py
PRODUCT := --ignore=tests/research --ignore=tests/benchmarks

.PHONY: install test test-slow test-all test-versions quality audit sbom tables docs clean
.DEFAULT_GOAL := test

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@echo "Set-up: installing torch, transformers, trl and the two harnesses into .venv (once; 7 GB, about 4 minutes)."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,eval,docs,dev]"
	@touch $@

test: .venv/installed  ## fast tier: offline, no GPU, about 3 minutes
	$(BIN)/python -m pytest -m "not slow" -n 2 --durations=10 tests $(PRODUCT)

test-slow: .venv/installed  ## README commands, kills, whole runs
	$(BIN)/python -m pytest -m "slow and not campaign" --durations=10 $(WHOLE_RUN)
	$(BIN)/python -m pytest -m "slow and not campaign" -n 2 --dist loadfile --durations=10 tests $(PRODUCT) --ignore=$(WHOLE_RUN)

test-all: .venv/installed  ## every test, research and campaigns of minutes each included
	$(BIN)/python -m pytest --durations=10 tests

test-versions: .venv/installed  ## plugin and training under other versions of transformers, each in an environment of its own
	$(BIN)/python -m pytest --durations=10 tests/test_versions.py

quality: .venv/installed  ## what pre-commit checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive modeling_aligned_llava train eval tinyworld research benchmarks
	$(BIN)/mypy

# Their own environment: what they need disagrees with some of our versions.
.venv-audit/installed:
	$(PYTHON) -m venv .venv-audit
	$(AUDIT)/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 cyclonedx-bom==7.5.0
	@touch $@

audit: .venv-audit/installed  ## known vulnerabilities of all pinned versions; asks the advisory database of PyPI, and fails without an answer
	$(AUDIT)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

sbom: .venv/installed .venv-audit/installed  ## what .venv holds, as CycloneDX JSON: sbom.cdx.json
	$(AUDIT)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file sbom.cdx.json $(BIN)/python

tables: .venv/installed  ## rebuild tables, figures and report of results/$(RUN)
	$(BIN)/python -m eval.report "results/$$RUN"

docs: .venv/installed  ## the docs site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

clean:
	rm -rf .venv .venv-audit results site sbom.cdx.json
