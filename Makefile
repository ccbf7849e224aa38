# One way to run each thing. Every target makes .venv for itself; nothing but python3 (3.11 or newer) and make is needed.

PYTHON ?= python3
BIN := .venv/bin
# What running needs, and everything: both in one .venv, to which installing only ever adds.
RUNNABLE := .venv/.runnable
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check

# `make test PG=15` tests against that PostgreSQL version instead of the default one.
ifdef PG
export HEADGATE_TEST_PG := $(PG)
endif

# Passed on to pytest: make test ARGS="-k receive -x", ARGS="-n 0" in this one process
ARGS ?=

MINUTES ?= 60

.DEFAULT_GOAL := help
.PHONY: help run test soak torture lint sync docs bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile

# (it may push to this machine, as the demo's receiver needs)
run: $(RUNNABLE) ## Start Headgate on its embedded PostgreSQL
	HEADGATE_PUSH_ALLOW="$${HEADGATE_PUSH_ALLOW-127.0.0.1}" $(BIN)/headgate up

test: $(INSTALLED) ## Run the tests (PG=15 picks the PostgreSQL version, ARGS="-k name" the tests)
	@$(BIN)/python tools/install_chromium.py
	$(BIN)/python -m pytest -n auto $(ARGS)

soak: $(INSTALLED) ## Run the long tests: minutes of stress, a million messages, many random histories
	$(BIN)/python -m pytest -m slow $(ARGS)

torture: $(INSTALLED) ## Run random histories of concurrent sessions for an hour (MINUTES=5, PG=15)
	$(BIN)/headgate torture --minutes $(MINUTES) $(if $(PG),--postgres /usr/lib/postgresql/$(PG)/bin) $(ARGS)

lint: $(INSTALLED) ## Check style, types, layers, sizes, names, the form of SQL and the generated sync client
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/python tools/build_docs.py --check
	$(BIN)/python tools/functions_version.py --check
	$(BIN)/python tools/check_sql.py
	$(BIN)/python tools/check_modules.py

sync: $(INSTALLED) ## Regenerate src/headgate/sync from src/headgate/aio
	$(BIN)/python tools/generate_sync.py

docs: $(INSTALLED) ## Regenerate the reference in docs/ and build the site into build/site
	$(BIN)/python tools/build_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(INSTALLED) ## Run the benchmarks and write docs/benchmarks
	$(BIN)/headgate bench --report docs/benchmarks

clean: ## Remove .venv, builds and caches (data in .headgate stays)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# The stamps are written last, so that an interrupted installation is done again.
$(RUNNABLE): pyproject.toml
	$(call make_venv,what running needs: about 110 MB)
	$(PIP) --no-compile -e '.[server,observe]'
	@touch $@

$(INSTALLED): pyproject.toml
	$(call make_venv,what the tests$(comma) the docs and the benchmarks need: about 2 GB)
	$(PIP) -e '.[dev,bench]'
	@touch $(RUNNABLE) $@

comma := ,
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headgate needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". hint: make PYTHON=python3.12 ...")'
	@echo "Installing into .venv, once, $(1)"
	@$(PYTHON) -m venv .venv
endef
