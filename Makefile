# Everything a contributor types. Each target sets up what it needs; a second call is quick.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   := $(VENV)/.demo
DOCS   := $(VENV)/.docs
# Modules are compiled when they are first imported; compiling all of torch's would be half of the set-up.
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: help setup demo test test-slow check lint types doctest snippets format wheels docs bench bench-gpu clean

help:
		@echo "make demo       train and compare five methods on embedded digits"
	@echo "make test       the test suite (minutes); make test-slow for the long checks"
	@echo "make check      what CI runs: ruff, codespell, pyright, doctests, documentation snippets, gallery, tests"
	@echo "make wheels     build the wheel and try it in a clean environment of each Python present"
	@echo "make docs       build the documentation site into site/ (two minutes)"
		@echo "make bench      time and memory compared with torch's cross-entropy and other packages (ten minutes)"
	@echo "make bench-gpu  the same on a GPU (two minutes)"
	@echo "make setup      only create $(VENV) and install; make clean removes it"

setup: $(READY)

# The demo needs a third of the packages; `make setup` adds the others to the same environment.
$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[demo]'
	@touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $(DEMO) $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "beliefmatch needs Python 3.10 or newer, found $$($(PYTHON) --version); set PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

demo: $(DEMO)
	$(BIN)/beliefmatch compare

# One process a core, with one thread each: files are shared out whole, so that their fixtures are made once.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

check: lint types doctest snippets test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(READY)
	$(BIN)/pyright

doctest: $(READY)
	$(BIN)/python -m pytest --doctest-modules --doctest-ignore-import-errors src -m '' -q

snippets: $(READY)
	$(BIN)/python tools/run_snippets.py README.md docs/*.md docs/*/*.md
	for script in examples/gallery/*.py; do echo $$script; MPLBACKEND=agg $(BIN)/python $$script || exit 1; done

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheels: $(READY)
	$(BIN)/python tools/wheels.py

# Its packages are installed by this target alone: nothing else needs them. The build itself uses no network.
$(DOCS): $(READY)
	$(PIP) --editable '.[docs]'
	@touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/run.py

bench-gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .ruff_cache .hypothesis
