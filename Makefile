# Two commands are all a fresh machine needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
# Small networks are fastest on one thread per process: see docs/how/engine.md.
export OMP_NUM_THREADS := 1
export OMP_WAIT_POLICY := PASSIVE
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo test docs fuzz kill format clean

demo: $(VENV)/.demo
	$(BIN)/distillmatch stream --tasks 6
	$(BIN)/distillmatch demo --out demo

test: $(VENV)/.test
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/pytest -n 2

docs: $(VENV)/.test
	$(BIN)/mkdocs build --strict

# Damage files and command lines for an hour, others every day, or: make fuzz SECONDS=60 SEED=7
SECONDS ?= 3600
SEED ?= $(shell date +%Y%m%d)
fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz.py --seconds $(SECONDS) --seed $(SEED)

# Kill commands at random moments, an hour for each KIND: run, learn, suite, ray
KIND ?= run
kill: $(VENV)/.test
	$(BIN)/python tests/kill.py --kind $(KIND) --seconds $(SECONDS) --seed $(SEED)

format: $(VENV)/.test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV) demo site .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
	    { echo "expected Python 3.11 to 3.14, '$(PYTHON)' is another version: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[report]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $@ $(VENV)/.demo
