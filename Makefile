# Everything a newcomer types. `make help` lists it.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TESTS_AT_ONCE ?= 3

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint lint-deploy ui docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 16

install: $(INSTALLED) ## virtual environment with everything (about two minutes)

# torch goes first, so that pip settles on the local build before it looks at the rest.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there; name a Python >= 3.11: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Spotlight needs Python >= 3.11, but $(PYTHON) is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "1 of 4: make the virtual environment .venv"
	@$(PYTHON) -m venv .venv
	@echo "2 of 4: install torch (the largest download)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch
	@echo "3 of 4: install Spotlight and all that it needs (about two minutes)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,docs]'
	@echo "4 of 4: compile, and prepare the server's database"
	@$(BIN)/python -m compileall -q flows tasks gpu_runtime storage ui benchmarks tests spotlight.py
	@$(BIN)/python -m flows.server.database
	@touch $@

demo: install ## a whole run on this machine, without a GPU
	$(BIN)/spotlight train --preset glyphs-stale --iterations 20

# Live tests often wait for processes to start: three groups at a time keep two cores busy. What pytest has
# rewritten is kept, also where Python is told to write no bytecode: it is the same in every process.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadscope --no-loadscope-reorder

test: install ## what must hold for a commit, on CPU
	$(PYTEST) -m "not slow"

test-all: install ## all tests, and more examples of each property
	$(PYTEST) --hypothesis-profile=all

lint: install ## style, types and the borders between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# A separate environment: these tools need other versions than Spotlight does.
.venv-deploy/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venv-deploy/bin/python -m pip install --quiet --group deploy
	@touch $@

lint-deploy: .venv-deploy/.installed ## the files of deploy/, by the tools that read them
	.venv-deploy/bin/python deploy/lint.py

ui: install ## the dashboard
	$(BIN)/spotlight ui

docs: install ## the documents as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean: ## remove caches; the environment and the runs stay
	rm -rf site .pytest_cache .hypothesis .ruff_cache .import_linter_cache *.egg-info
	find . -path "./.venv*" -prune -o -name __pycache__ -type d -exec rm -rf {} +
