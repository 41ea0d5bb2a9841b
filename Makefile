# Needs Python 3.11 or newer with pip, and make; everything else is installed into .venv.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
SITE := .venv-docs

# Workers share the cores; a linear-algebra library that starts threads in each of them only slows all of them down.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# Compiled modules are kept, whatever the shell says: else each process that a test starts compiles them all anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo new-problem new-atom check test lint format bench golden numbers docs clean

help:
	@echo "make demo   fit a private classifier on the Breast Cancer data, print its certificate, draw error against epsilon"
	@echo "make check  lint, check types, run the tests of declaring, proving, accounting and the layering: two minutes"
	@echo "make test   lint, check types, run every test"
	@echo "make lint   lint and check types"
	@echo "make format rewrite the files in the project's style"
	@echo "make bench  measure: a table in benchmarks/results (the data of DPCONVEX_DATA, if there are any)"
	@echo "make golden measure what tests/regression holds again, and show what moved (ARGUMENTS=--write writes it)"
	@echo "make numbers  fill the numbers of the documents that a command prints (ARGUMENTS=--all, or a program of benchmarks)"
	@echo "make docs   build the documentation as a site in build/site"
	@echo "make new-problem NAME=..., make new-atom NAME=...   write a first version of one"
	@echo "make clean  remove .venv and caches"

demo: $(INSTALLED)
	$(BIN)/python -m dpconvex demo

new-problem new-atom: $(INSTALLED)
	@$(BIN)/python docs/skeleton.py $(@:new-%=%) $(or $(NAME),$(error say NAME=its_name))

# What most changes break, in two minutes; continuous integration runs all tests.
QUICK := expressions data model sensitivity sets accounting noise checker

check: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(QUICK:%=tests/%) tests/test_layering.py tests/test_names.py tests/test_exact_density.py

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: export OMP_NUM_THREADS =
bench: export OPENBLAS_NUM_THREADS =
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

golden: $(INSTALLED)
	$(BIN)/python tests/regression/refresh.py $(ARGUMENTS)

numbers: $(INSTALLED)
	$(BIN)/python docs/fill_numbers.py $(ARGUMENTS)

# The documentation needs its own extra alone, in an environment of its own.
docs: $(SITE)/installed
	$(SITE)/bin/python docs/build_rules.py
	$(SITE)/bin/python docs/build_api.py
	$(SITE)/bin/python -m mkdocs build --strict

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

EXTRA = $(if $(filter $(SITE)%,$@),docs,dev)

# Some systems ship Python without the wheel that `venv` puts pip in from; pip can then fill the environment itself.
# uv installs in a quarter of pip's time; where it does not reach the index that pip is configured for, pip does it.
$(INSTALLED) $(SITE)/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "dpconvex needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test ! -L $(@D) || { echo '$(@D) is a link to another environment; remove the link'; exit 1; }
	$(PYTHON) -m venv $(@D) || { $(PYTHON) -m venv --clear --without-pip $(@D) && \
		$(PYTHON) -m pip --python $(@D)/bin/python install pip; }
	{ $(@D)/bin/python -m pip install uv && \
		$(@D)/bin/python -m uv pip install --compile-bytecode --python $(@D)/bin/python --editable '.[$(EXTRA)]'; } || \
		$(@D)/bin/python -m pip install --editable '.[$(EXTRA)]'
	touch $@

clean:
	rm -rf $(VENV) $(SITE) .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find dpconvex problems tests -name __pycache__ -type d -prune -exec rm -rf {} +
