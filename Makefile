# `make demo` needs Python 3.11, pip and make; `make test` also cmake and a C++ compiler, with which Horovod is built.
# Everything else is installed into .venv.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
INSTALL := python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP_INSTALL := $(VENV)/bin/$(INSTALL)
TORCH_VENV := .venv-torch
PYTEST := $(PY) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-faults test-torch-only horovod check format bench bench-20gb kills setup clean

help: ## list the commands
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: setup ## train a small network on the digits with 2 workers, then resume it
	@$(PY) examples/digits_demo.py

test: check horovod ## all checks, then the tests; the last line is pytest's summary
	@$(PYTEST) -q -m "not faults"

test-faults: setup horovod ## the long fault injection runs
	@$(PYTEST) -q -m faults

test-torch-only: ## the PyTorch tests in an environment with no other framework (1 GB in .venv-torch; removed on success)
	@rm -rf $(TORCH_VENV)
	@$(PYTHON) -m venv $(TORCH_VENV)
	@$(TORCH_VENV)/bin/$(INSTALL) torch==2.13.0
	@$(TORCH_VENV)/bin/$(INSTALL) --editable '.[torch]' psutil pytest pytest-timeout torchmetrics
	@$(TORCH_VENV)/bin/python -m pytest -q tests/train/torch
	@rm -rf $(TORCH_VENV)

check: setup ## ruff, format, mypy --strict, layers
	$(PY) -m ruff check --quiet .
	$(PY) -m ruff format --quiet --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

format: setup ## rewrite the code the way `make check` wants it
	$(PY) -m ruff check --quiet --fix .
	$(PY) -m ruff format --quiet .

horovod: setup $(VENV)/.horovod-ready ## build Horovod from its source and install it; the wheel is kept for the next time

bench: setup horovod $(VENV)/.bench-ready ## one table: each row measured against the peer beside it
	@$(PY) -m benchmarks

bench-20gb: setup ## 20 GB of Parquet through 2 workers (needs 30 GB in TMPDIR; removed afterwards)
	@$(PY) -m benchmarks data-20gb

kills: setup ## kill drivers, workers and wardens 1,000 times and look for what was lost (about 20 minutes)
	@$(PY) -m benchmarks kills --n 1000

setup: $(VENV)/.ready

# torch goes in first and alone: nothing that comes later may pull in another version of it.
$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(PY) || { echo "creating $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV) (the first time takes a few minutes)"
	@$(PIP_INSTALL) torch==2.13.0
	@$(PIP_INSTALL) --editable '.[dev]'
	@$(PIP_INSTALL) --no-deps tf_keras
	@touch $@

$(VENV)/.horovod-ready: tools/horovod/install tools/horovod/cxx $(VENV)/.ready
	@PIP_CONSTRAINT=constraints.txt tools/horovod/install $(PY)
	@touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	@echo "installing the peers that the benchmarks compare with"
	@$(PIP_INSTALL) --editable '.[bench]'
	@command -v wrk >/dev/null || (mkdir -p $(VENV)/wrk && cd $(VENV)/wrk && $(UNPACK_WRK)) || echo "$(NO_WRK)"
	@touch $@

# wrk puts load on the servers that are compared. Its Debian package is unpacked here, so that root is not needed.
UNPACK_WRK := apt-get download -qq wrk libluajit-5.1-2 2>/dev/null && for p in *.deb; do dpkg -x $$p . || exit; done
NO_WRK := there is no wrk and no Debian package of it: the serving rows are measured with a slower client

clean: ## remove caches and build products; .venv stays
	rm -rf $(TORCH_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +
