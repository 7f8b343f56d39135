# Two commands: `make run` and `make test`. Everything is installed into .venv; nothing outside this folder is touched.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
RECIPE ?= digits
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin

# Every pip call carries the constraints, and nothing is built in isolation, so that pip cannot pick another torch.
# Of pip's output only downloads are shown, line by line; all of it is in a log, whose end is shown if pip fails.
define pip
$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --constraint constraints.txt $(1) 2>&1 \
	| tee $(VENV)/pip.log | sed -u -n -e 's/^ *Downloading \([^ ]*\/\)\{0,1\}\(.*\)/  downloading \2/p' \
	-e 's/^Installing collected packages:.*/  unpacking/p' || { tail -n 30 $(VENV)/pip.log >&2; exit 1; }
endef

# One thread a worker: the workers share the cores between them. A module goes to one worker as a whole, in the order of
# the folders; otherwise modules of few tests would come last, and the longest of them leave all other workers idle.
pytest := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
by_module := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: help run test quick slow lint docs tables reproduce clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

run: $(VENV)/installed ## compare the paper's seven methods on scikit-learn's digits (RECIPE=… for another)
	@$(BIN)/fedssd compare --recipe $(RECIPE)

test: lint ## format, lint, types and every test that is not slow
	$(pytest) $(by_module) -m "not slow"

quick: $(VENV)/tested ## format, lint and the tests marked quick: the inner loop
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(pytest) -n $(WORKERS) -m "quick and not slow"

slow: $(VENV)/tested ## the longer checks only
	$(pytest) $(by_module) -m slow

lint: $(VENV)/tested ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

tables: $(VENV)/installed ## measure again what the methods page shows: costs, and every method on digits
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python -m studies.paper.digits_tables
	$(BIN)/python -m studies.paper pages

reproduce: $(VENV)/installed ## the paper's tables and figures, from results/ (SCALE=small trains them on digits)
	@$(BIN)/python -m studies.paper $(if $(filter small,$(SCALE)),run all --scale small --out runs/paper-small,tables --all --figures)

docs: $(VENV)/installed ## put the tables of results/ into the pages
	@$(BIN)/python -m studies.paper pages

clean: ## remove the environment and every cache (runs/ stays)
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src studies tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: a second call installs nothing, and a changed pin or dependency installs what changed.

$(VENV)/made:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; ok = (3, 11) <= v <= (3, 13); \
		ok or sys.exit("fedssd needs Python 3.11 to 3.13, $(PYTHON) is %d.%d: set PYTHON, e.g. make run PYTHON=python3.11" % v)'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/made pyproject.toml constraints.txt
	@echo "installing fedssd and its packages into $(VENV) (torch is large: minutes on a slow network)"
	@$(call pip,setuptools)
	@$(call pip,--no-build-isolation --editable '.[figures]')
	@touch $@

$(VENV)/tested: $(VENV)/installed
	@echo "installing the test tools into $(VENV)"
	@$(call pip,--no-build-isolation --editable '.[test]')
	@$(BIN)/python -c 'import triton' 2>/dev/null \
		|| $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps triton==3.6.0 \
		|| echo "no Triton for this machine: its kernels are left out of the tests"
	@touch $@
