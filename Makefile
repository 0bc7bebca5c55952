# Everything runs in .venv, which `install` fills from a Python package registry; what is installed is reused.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
TORCH ?= torch==2.13.0
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test check lint types goldens docs bench clean
export PYTHONSAFEPATH := 1

help:  ## list the targets
	@awk -F ':.*##  *' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv with everything that demo and test need

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "specforge needs Python 3.11 or newer: make install PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[test,dev,gguf]'
	@touch $@

demo: install  ## train a draft for a real model on this CPU and measure it (about 8 minutes)
	bash recipes/demo.sh

test: check  ## everything that CI checks

check: lint types  ## ruff, mypy, and all tests: goldens, import table, README blocks and docs/errors.md are among them
	OMP_NUM_THREADS=1 $(BIN)/pytest -m alone
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not alone" -n $(WORKERS) --dist worksteal

lint: install  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## mypy, strict on dsl, plan and compiler
	$(BIN)/mypy

goldens: install  ## remake tests/golden from recipes/, for a change of behaviour that is meant
	$(BIN)/python tests/golden/remake.py

docs: install  ## remake docs/errors.md from the rules and tests/bad_recipes, and the tables of docs/benchmarks
	$(BIN)/python docs/errors_page.py
	$(BIN)/python docs/benchmarks/tables.py

bench: install  ## measure the step and each kernel against their floors, on this machine's GPU or CPU (JSON=file keeps it)
	$(BIN)/python docs/benchmarks/run.py $(if $(JSON),--json $(JSON))

clean:  ## remove caches and runs; .venv stays
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
