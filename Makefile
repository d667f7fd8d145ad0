# `make serve` runs the server, `make test` the whole suite. Only GNU make and Python are needed.
PYTHON ?= python3
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8765
ARGS ?=
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help serve test check types models clean

help:
	@echo "make serve   install, fetch the models, start the server (HOST, PORT, ARGS)"
	@echo "make test    install the test tools and run the whole suite"
	@echo "make check   linter, types and the quick tests"
	@echo "make models  fetch the embedded models"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch $@ $(VENV)/.installed

models: $(VENV)/.installed
	$(BIN)/duologue models sync

serve: $(VENV)/.installed
	$(BIN)/duologue models sync
	$(BIN)/duologue serve --host $(HOST) --port $(PORT) $(ARGS)

# mypy does not follow the mapped folders, so it gets a view of them under their import name.
types:
	mkdir -p build/types
	ln -sfn ../.. build/types/duologue

check: $(VENV)/.installed-test types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -m "not weights and not browser" tests

test: $(VENV)/.installed-test types
	$(BIN)/duologue models sync
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --cov --cov-report=term tests

clean:
	rm -rf $(VENV) build dist .coverage .mypy_cache .pytest_cache .ruff_cache
