# `make demo` and `make test` are all a newcomer needs; both make the environment first.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# The tests that run, as pytest's -m: make test MARK="not slow"
MARK ?= not soak
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export RAY_USAGE_STATS_ENABLED = 0
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env demo test lint soak house docs clean
env: .venv/.installed
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) "$$(grep '^torch==' constraints.txt)"  # alone, so that no later package brings CUDA beside the CPU build
	$(PIP) -e '.[deployment,report,dev]'
	touch $@
demo: env
	$(BIN)/sottovoce demo
# The files of tests are in memory if there is room: ledgers are synced thousands of times. Matrices are small, so a
# process needs one thread. Ray's workers would give way to other tests.
test: lint
	@room=$$(df -k --output=avail /dev/shm 2> /dev/null | tail -n 1); [ "$${room:-0}" -gt 8000000 ] && at=/dev/shm; \
	place=$$(mktemp -d "$${at:-$${TMPDIR:-/tmp}}/sv.XXXXXX") && TMPDIR=$$place OMP_NUM_THREADS=1 RAY_worker_niceness=0 \
	$(BIN)/python -m pytest -q -n 3 --dist loadgroup --no-loadscope-reorder -m "$(MARK)" && { rm -rf "$$place" || true; }
lint: env
	$(BIN)/ruff check . && $(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
soak:
	$(MAKE) test MARK=soak
house: env
	$(BIN)/python docs/house.py
docs: env
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
clean:
	rm -rf .venv runs site
