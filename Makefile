# `make demo` and `make test` are all a newcomer needs; both make the environment first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made
LINTERS := $(VENV)/.linters
TORCH := $(VENV)/.torch
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export RAY_USAGE_STATS_ENABLED = 0
# Where the shell forbids it, every process would compile torch and Flower anew: three seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env demo test fast slow soak lint collect bench results house docs notebooks head clean

env:
	@$(MAKE) --no-print-directory -j 2 $(STAMP)

# torch, half of the work, is unpacked beside what a client and the checks need; the rest comes after both, since most of
# it needs torch: the pinned CPU build keeps every later package from pulling in CUDA. Of 40,000 modules a few thousand are
# ever imported: those are compiled then, not all of them here.
$(MADE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	touch $@

$(LINTERS): $(MADE)
	$(PIP) -e '.[dev]'
	touch $@

$(TORCH): $(MADE)
	$(PIP) --no-deps "$$(grep '^torch==' constraints.txt)"
	touch $@

$(STAMP): $(LINTERS) $(TORCH)
	$(PIP) -e '.[simulation,dev]'
	touch $@

demo: env
	$(BIN)/sottovoce demo

# The checks keep one core busy while the rest is unpacked. Then two processes import what the tests do, so that the three
# that run them find it compiled; what cannot be imported they report.
test:
	@$(MAKE) --no-print-directory -j 2 lint collect
	$(call TESTS,"not soak")

lint: $(LINTERS)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

collect: $(STAMP)
	@for part in 'tests/[a-r]*/' 'tests/s*/'; do $(BIN)/python -m pytest -qq --collect-only $$part > /dev/null 2>&1 & done; wait

# A process a core, and one that has room beside them while others wait for parties and Ray; each on one thread: the
# matrices of these tests are small, and threads that wait for each other cost more than they give. Ray's workers would
# give way to the other tests. Memory that a test gives back is kept for the next, not asked for again: a twentieth of
# what accounting takes. tests/conftest.py has the order. What tests write, 1.3 GB in all, is in memory where there is
# room for it: ledgers are synced to their disk thousands of times. It goes with a run that passes, and stays with another.
define TESTS
	@memory=$$(df -k --output=avail /dev/shm 2> /dev/null | tail -n 1); at=$${TMPDIR:-/tmp}; \
	if [ "$${memory:-0}" -gt 8000000 ] && [ -w /dev/shm ]; then at=/dev/shm; fi; \
	place=$$(mktemp -d "$$at/sv.XXXXXX") && TMPDIR=$$place OMP_NUM_THREADS=1 RAY_worker_niceness=0 \
	MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000 \
	$(BIN)/python -m pytest -q -n 3 --dist loadgroup --no-loadscope-reorder -m $(1) && { rm -rf "$$place" || true; }
endef

fast: env
	$(call TESTS,"not slow")

slow: env
	$(call TESTS,"slow and not soak")

# Sweeps of kills and fuzz in full, of which `make test` runs a fixed part; before a release.
soak: env
	$(call TESTS,soak)

bench: env
	$(BIN)/python -m tests.benchmarks.door
	$(BIN)/python -m tests.benchmarks.mechanisms
	$(BIN)/python -m tests.benchmarks.text
	$(BIN)/python -m tests.benchmarks.madlib
	$(BIN)/python -m tests.benchmarks.words
	$(BIN)/python -m tests.benchmarks.dp_mlm

# The measured tables of the pages, anew; in the background of a day, and it may be stopped at any time. DATA is a folder
# that holds sst2, cr and agnews; ARGUMENTS may be --list, or --only NAME.
DATA ?= data
results: env
	nice -n 10 $(BIN)/python docs/results.py --data $(DATA) $(ARGUMENTS)

# The prediction head of `sanitize --mechanism dp-mlm`, trained anew on the built-in texts, in a quarter of an hour; put the
# SHA-256 that it says into simulations/artifacts/bundled_head.py.
head: env
	$(BIN)/python -m simulations.artifacts.bundled_head

# The map in docs/architecture.md, from the imports.
house: env
	$(BIN)/python docs/house.py

# The notebooks of docs/, run anew with what they print kept in them.
notebooks: env
	$(BIN)/python docs/notebooks.py

# The documentation as a site that opens from a file, site/index.html. A link that leads nowhere fails.
docs: env
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html"

clean:
	rm -rf $(VENV) runs site
