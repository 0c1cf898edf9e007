# `make demo` and `make test` set everything up on a fresh machine; nothing has to be done before them.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

TRITON := 3.7.1 # what the CUDA build of torch 2.13.0 asks for

.PHONY: demo test test-gpu test-slow lint format docs clean

demo: $(READY)
	$(PYTHON) examples/route_votes.py
	$(VENV)/bin/torchcaps train --epochs 20

test: $(READY) lint test-gpu
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q -n 2 --dist worksteal

# Kernels of GPUs in Triton's interpreter: a process either interprets or compiles, and the other tests compile.
test-gpu: $(READY) $(VENV)/.triton
	if $(PYTHON) -c 'import triton' 2> /dev/null; then \
		OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(PYTHON) -m pytest -q -n 2 tests/gpu/interpreted; \
	else \
		echo "Triton could not be installed: the tests of GPU kernels are skipped" >&2; \
	fi

test-slow: $(READY)
	$(PYTHON) -m pytest -q -m slow

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyrefly check

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# No network, no LaTeX; a warning, a broken link or a formula that cannot be shown is an error.
docs: $(READY)
	$(PYTHON) -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo open docs/_build/html/index.html

# torch comes first and pinned: a resolver left alone would fetch gigabytes of GPU libraries.
$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*)
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

# 198 MB, without what it would pull in; where it cannot be had its tests are left out.
$(VENV)/.triton: $(READY)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps triton==$(TRITON) || true
	touch $(VENV)/.triton

clean:
	rm -rf $(VENV) build dist docs/_build docs/generated src/*.egg-info src/torchcaps/native/*.so
