# Everything runs in the environment that scripts/env.py makes on first use, outside the clone.
SHELL := /bin/bash
PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
  && echo $$p && break; done)
RUN := .venv/bin/python -m

.PHONY: help demo test run lint docs env clean fuzz mutants trials traces
MINUTES ?= 30

help: ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 8

demo: env ## the main job on a real server; report in demo-report/
	@.venv/bin/spec-fsm demo

test: lint ## lint, types and every test, with branch coverage of spec_fsm/ held at 100 %
	@$(RUN) scripts.trials --count
	@OMP_NUM_THREADS=1 $(RUN) pytest -n 2 --dist loadfile --cov --cov-report=term \
	  --cov-fail-under=100 $(ARGS_PYTEST)

run: ARGS ?= --help
run: env ## the spec-fsm command: make run ARGS="serve --help"
	@.venv/bin/spec-fsm $(ARGS)

fuzz: env ## the real scheduler and worker under random histories: make fuzz MINUTES=30
	@PYTHONPATH=tests $(RUN) fuzz.run --minutes $(MINUTES)

mutants: env ## mutation testing of spec_fsm/, written to docs/mutants.md (half an hour)
	@$(RUN) scripts.mutants

traces: env ## the traces of the real worker in tests/traces/, made anew
	@OMP_NUM_THREADS=1 SPEC_FSM_STRICT=1 PYTHONPATH=tests .venv/bin/python tests/traces/make.py

trials: env ## the long trials whose sources changed: make trials ARGS="--list", ARGS=fuzz
	@$(RUN) scripts.trials $(ARGS)

lint: env ## ruff and mypy --strict over all packages
	@$(RUN) ruff check .
	@$(RUN) mypy

docs: env ## the pages and the drawing that are written from the table
	@.venv/bin/spec-fsm model docs docs/generated

env: ## only the environment (11 GB, shared by clones with equal requirements)
	@test -n "$(PYTHON)" || { echo "spec-fsm: Python 3.11 or newer with venv is needed" >&2; exit 1; }
	@$(PYTHON) scripts/env.py

clean: ## the clone's own build products; the shared environment stays
	rm -rf .venv dist demo-report .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
