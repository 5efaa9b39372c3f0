# make demo | test | dev | lint | bench. Each makes what it needs, in virtual environments here.
PYTHON ?= python3
# What pip installs as torch: any build in pyproject.toml's range will do, for the CPU too.
TORCH ?= torch==2.13.0

PIP_FLAGS := --disable-pip-version-check --quiet
.PHONY: demo test dev lint bench clean
.DELETE_ON_ERROR:

demo: .venv/torch
	.venv/bin/pip install $(PIP_FLAGS) .
	.venv/bin/pytracer demo

# Every test, against the package as users install it.
test: .venv/torch
	.venv/bin/pip install $(PIP_FLAGS) '.[test]'
	.venv/bin/pytest

# The fast tests, against this source tree: C++ changes need `make dev` again, Python ones do not.
dev: .venv-dev/torch
	.venv-dev/bin/pip install $(PIP_FLAGS) --editable '.[test]'
	.venv-dev/bin/pytest -m 'not slow'

lint: .venv/torch
	.venv/bin/pip install $(PIP_FLAGS) '.[test]'
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/torch
	.venv/bin/pip install $(PIP_FLAGS) .
	.venv/bin/python bench/per_event.py
	.venv/bin/python bench/dump.py

# torch comes first and by itself, so that installing pytracer finds it and looks for no other.
%/torch:
	$(PYTHON) -m venv $*
	$*/bin/pip install $(PIP_FLAGS) '$(TORCH)' numpy
	touch $@

clean:
	rm -rf .venv .venv-dev build
