# `make quickstart` shows everything once; `make test` proves it. Both install what they need
# into .venv; pip's own settings (indexes, proxies, caches) are respected.
PYTHON ?= python3.11
BIN := .venv/bin
# torch comes first and alone, pinned exactly: where pip is offered a CPU build, it takes that.
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: help install install-test browser quickstart test test-all check fix docs serve clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not here. Install Python 3.11, or name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing AutoSync and its dependencies into .venv (once; torch is the largest)"
	$(PIP) $(TORCH)
	$(PIP) -e '.[service]'
	@echo "Compiling the ranking kernels (once)"
	$(BIN)/python scripts/warm_caches.py
	@touch $@

.venv/.installed-test: .venv/.installed
	@echo "Installing what the tests need"
	$(PIP) -e '.[test,dev]'
	@touch $@

install: .venv/.installed ## create .venv and install AutoSync into it

install-test: .venv/.installed-test ## the same with the tools of tests and checks

browser: ## Debian's chromium for the dashboard's tests, where apt can install it
	@scripts/install_browser

quickstart: .venv/.installed ## tune ResNet-50 for a small cluster, from nothing
	$(BIN)/autosync quickstart

test: .venv/.installed-test browser ## format, lint, types, import rule and the tests
	scripts/check

test-all: .venv/.installed-test browser ## the same with the long tests: kills, faults, fuzzing, frameworks
	scripts/check --all

check: .venv/.installed-test ## everything but the tests
	scripts/check --no-tests

fix: .venv/.installed-test ## format and mend what can be mended, then check
	scripts/check --fix --no-tests

docs: .venv/.installed-test ## the documentation as a site, in build/site; a broken link is an error
	$(BIN)/python scripts/build_docs.py

serve: .venv/.installed ## the service and its dashboard on http://127.0.0.1:8080
	$(BIN)/autosync serve

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
