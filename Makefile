# `make demo` and `make test` are all a newcomer needs; both make the environment first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export RAY_USAGE_STATS_ENABLED = 0

.PHONY: env demo test fast slow lint bench clean

env: $(STAMP)

# torch goes first and alone: the pinned CPU build keeps every later package from pulling in CUDA.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[simulation,dev]'
	touch $@

demo: env
	$(BIN)/sottovoce demo

test: lint fast slow

lint: env
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# One thread: the matrices of these tests are small, and threads that wait for each other cost more than they give.
fast: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow"

slow: env
	$(BIN)/python -m pytest -q -m slow

bench: env
	$(BIN)/python -m tests.bench_mechanisms
	$(BIN)/python -m tests.bench_text
	$(BIN)/python -m tests.bench_madlib
	$(BIN)/python -m tests.bench_dp_mlm

clean:
	rm -rf $(VENV) runs
