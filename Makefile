# Every target does its own set-up: a fresh clone needs nothing but Python 3.11 or newer.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/base ## producers, a trainer that is killed half way, and the books at the end; ten seconds
	$(BIN)/sqlreplay demo

test: .venv/dev ## everything, on SQLite and on a Postgres that the tests start themselves
	$(BIN)/python -m pytest

lint: .venv/dev ## ruff, mypy strict and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/base ## our verbs beside the bare driver, as ratios
	$(BIN)/sqlreplay bench

clean: ## remove the environment and what tools left behind
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/base: pyproject.toml
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/dev: pyproject.toml
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ .venv/base

.PHONY: help demo test lint bench clean
