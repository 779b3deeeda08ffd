# Everything a newcomer needs: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_WORKERS ?= 2
DEPLOYED := tests/integration/flare

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# PIP_CONSTRAINT and not -c: it also pins what pip installs to build the package.
# The stamp is written last, so an interrupted install is repeated, and a finished one starts at once.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fedmend needs Python 3.11 or newer; set PYTHON=/path/to/python3")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedmend and its pinned dependencies into $(VENV) (once; a few minutes) ..."
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

install: $(READY) ## create .venv and install the exact pins
demo: $(READY) ## train Local, FedSage and Global on Cora, 5 silos; under a minute
	@$(BIN)/fedmend demo
test: $(READY) ## run all tests but those of deployment and in a browser
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --ignore $(DEPLOYED) --ignore tests/browser $(ARGS)
test-deploy: $(READY) ## run the tests of deployment: real processes, a few minutes
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile $(DEPLOYED) $(ARGS)
test-browser: $(READY) ## look at the report in Debian's chromium; pictures in build/screenshots
	@command -v chromium >/dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; }
	FEDMEND_SCREENSHOTS=$(CURDIR)/build/screenshots $(BIN)/python -m pytest tests/browser $(ARGS)
lint: $(READY) ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
format: $(READY) ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
types: $(READY) ## mypy, strict
	$(BIN)/mypy
check: lint types test test-deploy ## lint + types + all tests: what CI runs
bench: $(READY) ## measure speed, memory and growth; writes docs/benchmarks.md
	$(BIN)/python -m benchmarks $(ARGS)
clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help install demo test test-browser test-deploy lint format types check bench clean
