# `make demo` needs Python 3.11, pip and make; `make test` also cmake and a C++ compiler, with which Horovod is built.
# Everything else is installed into .venv.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
INSTALL := python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP_INSTALL := $(VENV)/bin/$(INSTALL)
TORCH_VENV := .venv-torch
TRACKERS_VENV := .venv-trackers
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := $(PY) -m pytest -q --numprocesses $(JOBS) --dist worksteal
EVERYDAY := not faults and not rl and not cluster and not trackers

.DEFAULT_GOAL := help
.PHONY: help demo test-core test test-all test-slow test-faults test-rl test-cluster test-trackers test-torch-only horovod browser check format page bench bench-20gb bench-cluster kills soak setup clean

help: ## list the commands
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: $(VENV)/.demo-ready ## train a small network on the digits with 2 workers, then resume it
	@PYTHONDONTWRITEBYTECODE= $(PY) examples/digits_demo.py

# The layers below the frameworks, and what all trainers share.
CORE_TESTS := tests/air tests/storage tests/engine tests/run tests/data tests/train/test_*.py

test-core: setup ## the tests for everyday work (under 3 minutes)
	@$(PYTEST) -m "not slow and $(EVERYDAY)" $(CORE_TESTS)

test: check horovod browser ## all checks, a few tests on a Ray cluster, then the tests (under 13 minutes); the last line is pytest's summary
	@$(PY) -m pytest -q -m "cluster and smoke" tests/engine/ray
	@$(PYTEST) -m "not slow and $(EVERYDAY)" --durations=10

test-all: test test-slow test-faults test-rl test-cluster test-trackers ## everything: `make test`, full contracts, fault injection, RLlib, clusters, trackers

test-slow: setup horovod browser ## full contracts, repetitions and rare combinations
	@$(PYTEST) -m "slow and $(EVERYDAY)"

test-faults: setup horovod ## the long fault injection runs
	@$(PYTEST) -m "faults and not rl and not cluster and not trackers"

test-rl: setup $(VENV)/.rl-ready ## the tests of RLTrainer, which train with RLlib; installs it
	@$(PYTEST) -m rl --durations=10

test-cluster: setup horovod $(VENV)/.cluster-ready ## the tests on Ray clusters, also of hosts made from namespaces (needs root); installs RLlib
	@$(PY) -m pytest -q -m cluster --durations=10

test-trackers: $(TRACKERS_VENV)/.ready ## MLflow with a real server, and Aim (1 GB in .venv-trackers, which stays)
	@$(TRACKERS_VENV)/bin/python -m pytest -q -m trackers tests/trackers/live --durations=5

test-torch-only: ## the PyTorch tests in an environment with no other framework (1 GB in .venv-torch; removed on success)
	@rm -rf $(TORCH_VENV)
	@$(PYTHON) -m venv $(TORCH_VENV)
	@$(TORCH_VENV)/bin/$(INSTALL) torch==2.13.0
	@$(TORCH_VENV)/bin/$(INSTALL) --editable '.[torch]' psutil pytest pytest-timeout torchmetrics
	@$(TORCH_VENV)/bin/python -m pytest -q tests/train/torch
	@rm -rf $(TORCH_VENV)

check: setup ## ruff, format, mypy --strict, layers, and that the built run page is current
	$(PY) -m ruff check --quiet .
	$(PY) -m ruff format --quiet --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) tools/page.py --check

page: setup ## build the front end of the run page (needs node 20.19 or newer); its build is committed
	@$(PY) tools/page.py

format: setup ## rewrite the code the way `make check` wants it
	$(PY) -m ruff check --quiet --fix .
	$(PY) -m ruff format --quiet .

horovod: setup $(VENV)/.horovod-ready ## build Horovod from its source and install it; the wheel is kept for the next time

bench: setup horovod $(VENV)/.bench-ready $(TRACKERS_VENV)/.ready ## one table: each row measured against the peer beside it
	@$(PY) -m benchmarks

bench-20gb: setup ## 20 GB of Parquet through 2 workers (needs 30 GB in TMPDIR; removed afterwards)
	@$(PY) -m benchmarks data-20gb

bench-cluster: setup $(VENV)/.bench-ready ## the same beside Ray Train and Ray Tune on a Ray cluster of 3 hosts (needs root; 20 minutes)
	@$(PY) -m benchmarks cluster

kills: setup ## kill drivers, workers and wardens 1,000 times and look for what was lost (about 20 minutes)
	@$(PY) -m benchmarks kills --n 1000

soak: setup ## one driver trains, searches, reads data and serves under faults for an hour, or SOAK_MINUTES, and must not grow
	@$(PY) -m benchmarks soak

setup: $(VENV)/.ready ## install every framework and the tools into .venv

# The part of pyproject.toml that the environment depends on, rewritten only when it changes: the file also holds
# settings of tools.
REQUIREMENTS := sed -n '/^dependencies/,/^\[tool/p' pyproject.toml
$(VENV)/.requirements: pyproject.toml
	@test -x $(PY) || { echo "creating $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@$(REQUIREMENTS) | cmp -s - $@ || $(REQUIREMENTS) >$@

# pip leaves alone what is there already: a changed extra costs only its own packages. It compiles one file after the
# other, so that is left to Python: in the demo whatever it imports, for development everything and on all cores.
$(VENV)/.demo-ready: $(VENV)/.requirements constraints.txt
	@echo "installing what the demo needs into $(VENV): PyTorch and scikit-learn (a minute the first time)"
	@$(PIP_INSTALL) --no-compile --editable '.[torch,sklearn]'
	@touch $@

$(VENV)/.ready: $(VENV)/.demo-ready
	@echo "installing the other frameworks and the tools into $(VENV) (a few minutes the first time)"
	@$(PIP_INSTALL) --no-compile --editable '.[dev]'
	@$(PIP_INSTALL) --no-compile --no-deps tf_keras
	@$(PY) -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # some packages ship files for other versions of Python
	@touch $@

# The versions that the wheel is built for are in constraints.txt; other changes of the environment do not concern it.
$(VENV)/.horovod-ready: tools/horovod/install tools/horovod/cxx constraints.txt | $(VENV)/.ready
	@PIP_CONSTRAINT=constraints.txt tools/horovod/install $(PY)
	@touch $@

# Chromium for the tests of the run page, in the user's cache. Without it those tests are skipped, and the summary says
# so; with CI=true that is an error. Looked for each time, which takes a second: the cache may have been emptied.
browser: $(VENV)/.ready
	@$(PY) tools/browser.py >/dev/null || test "$$CI" != true

# What a real MLflow server and Aim need does not fit beside the other frameworks: no constraints here.
$(TRACKERS_VENV)/.ready: tools/trackers-requirements.txt pyproject.toml
	@test -x $(TRACKERS_VENV)/bin/python || $(PYTHON) -m venv $(TRACKERS_VENV)
	@echo "installing a real MLflow server and Aim into $(TRACKERS_VENV) (a few minutes the first time)"
	@$(TRACKERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --requirement $<
	@touch $@

$(VENV)/.rl-ready: $(VENV)/.ready
	@echo "installing RLlib into $(VENV)"
	@$(PIP_INSTALL) --editable '.[rllib]'
	@touch $@

# The tests of clusters train with RLlib too, and submit jobs.
$(VENV)/.cluster-ready: $(VENV)/.rl-ready
	@echo "installing what Ray's job server needs into $(VENV)"
	@$(PIP_INSTALL) --editable '.[ray-default]'
	@touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	@echo "installing the peers that the benchmarks compare with"
	@$(PIP_INSTALL) --editable '.[bench]'
	@command -v wrk >/dev/null || (mkdir -p $(VENV)/wrk && cd $(VENV)/wrk && $(UNPACK_WRK)) || echo "$(NO_WRK)"
	@$(PY) -m benchmarks.viewer_venv || echo "$(NO_VIEWERS)"
	@touch $@

# wrk puts load on the servers that are compared. Its Debian package is unpacked here, so that root is not needed.
UNPACK_WRK := apt-get download -qq wrk libluajit-5.1-2 2>/dev/null && for p in *.deb; do dpkg -x $$p . || exit; done
NO_VIEWERS := TensorBoard and MLflow could not be installed: the run page is measured without them
NO_WRK := there is no wrk and no Debian package of it: the serving rows are measured with a slower client

clean: ## remove caches and build products; .venv stays
	rm -rf $(TORCH_VENV) $(TRACKERS_VENV) page/node_modules build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +
