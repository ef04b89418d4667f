# Each target sets up .venv first if that is needed; `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3.11
# More options for pytest, as in: make test PYTEST="-x -k codec"
PYTEST ?=
BIN := .venv/bin
# Importing every file of tests takes half a minute of the processor for each process: suites name those that they need.
FILES_WITH = $$(grep -lE "$(1)" tests/test_*.py)
# Where somebody looks, pip shows what it downloads and how far it is.
PIP_OPTIONS := $(shell test -t 2 || echo --quiet)

.PHONY: help demo test chaos chaos-long test-images site test-site tutorial-gpu slug setup lint dist bench lab clean
.DEFAULT_GOAL := demo

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: setup ## train a small swarm here for some minutes, and draw with the model before and after (the default)
	$(BIN)/python -m dalle_lib demo --notebook notebooks/01_join_training.ipynb

lab: setup ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

setup: .venv/complete ## prepare .venv alone: about 7 GB of packages, downloaded once

# The stamp is written last, so the next make continues an interrupted set-up. dalle_lib/__init__.py holds the version.
# pip compiles one file after another: about 100 of its 140 s of the processor. What is no Python 3 stays as it is.
.venv/complete: requirements.txt pyproject.toml dalle_lib/__init__.py
	rm -f $@
	@echo "Setting up .venv: about 7 GB of packages are downloaded once; this takes minutes, on a slow line an hour."
	test -x $(BIN)/python || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install $(PIP_OPTIONS) --no-compile --requirement requirements.txt
	$(BIN)/python -W ignore -m compileall -qq -j 0 .venv/lib || true
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

lint: setup ## check style, and that layers import downwards only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Workers compute on one thread each. torch's threads spin while they wait for each other: two workers with two threads
# each took 148 s of the processor for the tests of VQ-GAN training on two cores, which take 7 s on one thread.
# Many tests wait for a process or a time limit, so three workers keep two cores busy.
# Tests with real peers come last, and two at a time: peers mostly wait, but on a busy machine they miss each other. Each
# process gets one test after another, as some take minutes and most take seconds.
# pytest ends with 5 where the options leave it no test.
test: setup ## run the tests and every notebook, the longer ones shortened
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not chaos and not images and not site and not peers" -n 3 --dist loadfile --no-loadscope-reorder \
	  $(PYTEST) || [ $$? = 5 ]
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "peers and not chaos and not images and not site" -n 2 --maxschedchunk 1 \
	  $(call FILES_WITH,mark.peers|swarm_folder) $(PYTEST) || [ $$? = 5 ]

# Seven peers at a time attack and defend themselves, alone; twelve meet beside busy loops. The other swarms are small,
# and two at a time fit (conftest.py mixes those that wait with those that train a model).
ALONE = AttackSwarm|benchmarks/groups
chaos: setup ## kill, freeze and attack peers of real swarms, and run the demo
	$(BIN)/python -m pytest -m "chaos and not long" $(call FILES_WITH,$(ALONE)) $(PYTEST) || [ $$? = 5 ]
	$(BIN)/python -m pytest -m "chaos and not long" -n 2 --maxschedchunk 1 \
	  $$(grep -LE '$(ALONE)' $(call FILES_WITH,mark.chaos)) $(PYTEST) || [ $$? = 5 ]

# What takes long, and whose claims shorter tests guard in CI, too.
chaos-long: setup ## send more changed messages, play evenings of members and liars, and an hour of a run
	$(BIN)/python -m pytest -m long -n 2 --maxschedchunk 1 $(call FILES_WITH,mark.long) $(PYTEST) || [ $$? = 5 ]
	$(BIN)/python -m pytest -m "not chaos" -n 2 --hypothesis-profile=thorough tests/test_fuzz*.py $(PYTEST) || [ $$? = 5 ]
	$(BIN)/python tests/long_rehearsal.py outputs/long_rehearsal 60

# The packages that Colab has installed, as far as the kit and its notebooks touch them.
.venv-colab/complete: .venv/complete tests/data/images/colab-2026-08-19.txt scripts/try_image.py
	rm -f $@
	$(BIN)/python scripts/try_image.py tests/data/images/colab-2026-08-19.txt --python 3.13 --build .venv-colab
	touch $@

test-images: .venv-colab/complete ## install the kit among Colab's packages as a notebook does, and run the notebooks
	$(BIN)/python -m pytest -m images -n 2 --maxschedchunk 1 $(call FILES_WITH,mark.images) $(PYTEST)

site: setup ## build the web page into site/_build/html
	$(BIN)/python site/build.py

# Two browsers on two cores (conftest.py names the files that come first).
test-site: site ## build the web page and look at every page in Chromium
	$(BIN)/python -m pytest -m site --built-site -n 2 --dist loadfile --no-loadscope-reorder \
	  $(call FILES_WITH,mark.site) $(PYTEST) || [ $$? = 5 ]

tutorial-gpu: setup ## run notebook 03 with GPT-2 Large on a GPU of 16 GB or more, and record its figures
	$(BIN)/python scripts/tutorial_gpu.py

bench: setup ## run the benchmarks that this machine can run (hours), and say which were left out
	$(BIN)/python benchmarks/run_all.py

slug: setup ## move the repository's address: SLUG=owner/name REF=branch or tag
	$(BIN)/python scripts/publish.py $(if $(SLUG),--slug $(SLUG)) $(if $(REF),--ref $(REF))

dist: setup ## build the wheel and the source archive into dist/, and check them as a package index does
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean: ## remove all that make has made
	rm -rf .venv .venv-colab outputs build dist *.egg-info site/_build site/_made site/_npm
