PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The tests run one process per core, so each computes with one thread; so does the demo, whose accuracy was measured so.
export OMP_NUM_THREADS ?= 1

TESTS ?= tests/test_package.py tests/test_imports.py tests/test_house.py tests/cli

.DEFAULT_GOAL := help
.PHONY: help install demo checkpoints space kernel tables test research-test check peer lint package docs clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/installed  ## build .venv and install the project into it

demo: install  ## fine-tune a TanhMax ViT on handwritten digits, reload it in a clean process, draw its attention
	$(BIN)/python -m training.demo

checkpoints: install  ## train the published checkpoints: NAMES=digits, DATA_DIR, MINILM and DINOV2=folder
	$(BIN)/python -m training.checkpoints $(NAMES) $(if $(DATA_DIR),--data-dir $(DATA_DIR)) \
	  $(if $(MINILM),--minilm $(MINILM)) $(if $(DINOV2),--dinov2 $(DINOV2))

card-code: install  ## write the model code into the folders of model_cards/ that hold weights
	$(BIN)/python -m training.card_code

space: install  ## run the Space locally: explanations in the browser, next to the softmax counterpart
	$(BIN)/python -u space/app.py $(CHECKPOINTS)

kernel: install  ## make kernels/signed-attention loadable by the Hub's kernels library
	$(BIN)/python kernels/build.py

tables: install  ## fill the tables of all pages from the csv files of runs
	$(BIN)/python -m benchmarks.tables

# One process per core, at most 4 because of memory; all tests of a file run in one process, in the order of
# tests/conftest.py.
PARALLEL = --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: install  ## run the tests
	$(BIN)/python -m pytest $(PARALLEL)

research-test: install  ## run the tests of research/
	$(BIN)/python -m pytest research $(PARALLEL)

check: install  ## check style, and run the tests that are not slow: for daily work, about 3 minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

peer: install  ## run transformers' own model tests on stock and signed classes (5 minutes)
	$(BIN)/python benchmarks/peer.py

lint: install  ## check style, formatting, types and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/zizmor --offline --no-progress --quiet .github

# The interpreter is that of .venv; hf_bidir, training and the others come from the unpacked sdist.
package: install  ## build dist/, and run the sdist's tests from it: TESTS="tests", or a few of them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && tar -xzf dist/*.tar.gz -C "$$folder" --strip-components 1 \
	  && cd "$$folder" && PYTHONPATH="$$folder" $(CURDIR)/$(BIN)/python -m pytest $(TESTS)

docs: $(VENV)/docs  ## build the documentation into site/; a broken link or an unknown name is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --clean

clean:  ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than pyproject.toml exactly when the installation is up to date.
$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "hf_bidir needs Python 3.10 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try: make install PYTHON=python3.12")'
	@echo "Installing hf_bidir and its dependencies into $(VENV); the first time downloads PyTorch."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[dev]'
	@touch $@
	@echo "Installed. Next: make demo, make test"

$(VENV)/docs: $(VENV)/installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[docs]'
	@touch $@
