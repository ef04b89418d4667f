# Each target sets itself up first; `make setup` alone only prepares .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test chaos test-images slug setup lint bench lab clean
.DEFAULT_GOAL := demo

setup: .venv/complete

# The stamp is written last, so an interrupted set-up is taken up again by the next make.
.venv/complete: requirements.txt pyproject.toml
	rm -f $@
	@echo "Setting up .venv: about 7 GB of packages are downloaded once; this takes minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/python -m dalle_lib demo --notebook notebooks/01_join_training.ipynb

test: setup
	$(BIN)/python -m pytest -m "not chaos and not images"

chaos: setup
	$(BIN)/python -m pytest -m chaos

# What Colab has installed, as far as the notebooks touch it.
.venv-colab/complete: .venv/complete tests/data/images/colab-2026-08-19.txt scripts/try_image.py
	rm -f $@
	$(BIN)/python scripts/try_image.py tests/data/images/colab-2026-08-19.txt --python 3.13 --build .venv-colab
	touch $@

test-images: .venv-colab/complete
	$(BIN)/python -m pytest -m images

# make slug SLUG=owner/name REF=main
slug: setup
	$(BIN)/python scripts/publish.py $(if $(SLUG),--slug $(SLUG)) $(if $(REF),--ref $(REF))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

bench: setup
	for script in benchmarks/*.py; do $(BIN)/python $$script; done

lab: setup
	$(BIN)/jupyter lab notebooks

clean:
	rm -rf .venv .venv-colab outputs build dist *.egg-info
