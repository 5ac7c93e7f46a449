# `make demo` and `make test` are all a newcomer needs; both make the environment first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export RAY_USAGE_STATS_ENABLED = 0
# Where the shell forbids it, every process would compile torch and Flower anew: three seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env demo test fast slow soak lint collect checked bench results house docs notebooks head clean

env: $(STAMP)

# uv, which Flower brings along, unpacks on all cores: seconds, where pip takes most of a minute. It reads nothing of where
# pip was told that packages are, or that it may ask nobody: FROM says it in uv's words, unseen, for an address may hold a
# password; of several places the best match counts, as with pip. Where that is not enough, pip does it all, torch first and
# alone: its pinned CPU build keeps every later package from pulling in CUDA. Of 40,000 modules a few thousand are ever
# imported: those are compiled then, not all of them here.
PIP := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --index-strategy unsafe-best-match
FROM := awk -F "='|'$$" 'BEGIN { \
	said["find-links"] = "--find-links="; said["index-url"] = "--default-index="; said["extra-index-url"] = "--index=" } \
	{ sub(/.*\./, "", $$1); n = split($$2, each, / |\\n/); for (i = 1; i <= n; i++) if ($$1 in said) print said[$$1] each[i] } \
	$$1 == "no-index" && tolower($$2) ~ /^(1|y|yes|t|true|on)$$/ { print "--no-index" }'
ALL := -c constraints.txt -e '.[adversary,deployment,report,dev]'
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@from=$$($(BIN)/pip config list | $(FROM)); \
	{ $(PIP) "$$(grep '^uv==' constraints.txt)" && $(UV) $$from $(ALL); } || \
	{ $(PIP) "$$(grep '^torch==' constraints.txt)" && $(PIP) $(ALL); }
	touch $@

demo: env
	$(BIN)/sottovoce demo

# The checks keep one core busy. Beside them and after them a process imports what the tests do, so that the three that run
# them find it compiled; what cannot be imported they report.
test: env
	@$(MAKE) --no-print-directory -j 2 collect checked
	$(call TESTS,"not soak")

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

COLLECT := $(BIN)/python -m pytest -qq --collect-only -m "not soak"
collect: env
	@$(COLLECT) $(filter-out tests/simulations/, $(wildcard tests/*/)) > /dev/null 2>&1 || true

checked: lint
	@$(COLLECT) tests/simulations > /dev/null 2>&1 || true

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

# Kills, fuzz, pages in a browser and notebooks in full, of which `make test` runs a part; before a release.
soak: env
	$(call TESTS,soak)

bench: env
	$(BIN)/python -m benchmarks.door
	$(BIN)/python -m benchmarks.mechanisms
	$(BIN)/python -m benchmarks.text
	$(BIN)/python -m benchmarks.madlib
	$(BIN)/python -m benchmarks.words
	$(BIN)/python -m benchmarks.dp_mlm

# The measured tables of the pages, anew; in the background of a day, and it may be stopped at any time. DATA is a folder
# that holds sst2, cr and agnews; ARGUMENTS may be --list, or --only NAME.
DATA ?= data
results: env
	nice -n 10 $(BIN)/python docs/results.py --data $(DATA) $(ARGUMENTS)

# The prediction head of `sanitize --mechanism dp-mlm`, trained anew on the built-in texts, in a quarter of an hour; put the
# SHA-256 that it says into simulations/artifacts/bundled_head.py.
head: env
	$(BIN)/python -m benchmarks.masked_head

# The map in docs/explanation/architecture.md, from the imports.
house: env
	$(BIN)/python docs/house.py

# The notebooks of docs/, run anew with what they print kept in them.
notebooks: env
	$(BIN)/python docs/notebooks.py

# The documentation as a site that opens from a file, site/index.html. A link that leads nowhere fails.
docs: env
	$(PIP) -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html"

clean:
	rm -rf $(VENV) runs site
