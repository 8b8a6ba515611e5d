# Every target sets up what it needs: a virtual environment in .venv with the package and its extras.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test check format bench compat clean
.DEFAULT_GOAL := help

help:                ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

demo: $(VENV)/.demo  ## real flights through a broker, a consumer group and Spark
	$(BIN)/kraftpy demo

test: $(VENV)/.dev   ## the tests
	@sh tests/system-packages.sh
	$(BIN)/python -m pytest

check: $(VENV)/.dev  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## rates, start-up and memory, beside a peer's, into bench/RESULTS.md
	$(BIN)/python -m bench

format: $(VENV)/.dev ## rewrite the files as `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

compat: $(VENV)/.dev ## kafka-python's own integration suite against our server
	$(BIN)/python tests/compat/kafka_python_suite.py

clean:               ## remove what the targets made
	rm -rf $(VENV) build dist demo-output kraftpy-data
