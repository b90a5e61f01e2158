# Every recipe runs from the root of the project and names paths relative to it,
# so that a path with a space in it does no harm.

PY := .venv/bin/python
LOCK := $(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate $(if $(UPGRADE),--upgrade)

# Hundreds of processes are started here: where this is set, each of them would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help up test check fix fuzz sim bench chaos lock clean setup-runtime setup-dev

help: ## show this list
	@echo "Delta CI. The targets are:"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

up: setup-runtime ## start Delta CI here (ONCE=1: start, show that it works, stop)
	@# Ctrl-C is the normal way to stop, so it is no error.
	@trap : INT; .venv/bin/deltaci up $(if $(filter 1,$(ONCE)),--once) || [ $$? -eq 130 ]

test: ## everything: set-up, check, all tests (ONLY=core: only tests/core, no checks; COSTS=1: cost of each file)
	@scripts/test $(ONLY)

check: setup-dev ## the quick checks: lint, format, types, tidiness, generated docs
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check . || { echo "format: run 'make fix'" >&2; exit 1; }
	@$(PY) -m mypy --strict
	@$(PY) -m pytest -q tests/test_tidy.py tests/test_names.py tests/test_rules.py
	@$(PY) -m scripts.docgen --check

fix: setup-dev ## repair what can be: lint, format, generated docs
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .
	@$(PY) -m scripts.docgen

fuzz: setup-dev ## try hostile input everywhere (MINUTES=5; SEED=n: that round again; ONLY=word: those targets)
	@$(PY) -m tests.fuzz --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)")

bench: setup-dev ## run the benchmarks (ONLY=queue: that one; PEERS=1: beside other queues)
	@# The peers have a .venv of their own inside ours, which new set-ups and `make clean` remove with it.
	@# The lock has all dependencies; older versions of pip refuse an extra that one of them asks for with hashes.
	@[ "$(PEERS)" != 1 ] || cmp -s requirements/peers.lock .venv/peers/lock || { \
		echo "installing the peers into .venv/peers …" && $(PY) -m venv --clear .venv/peers && \
		.venv/peers/bin/python -m pip --quiet --quiet --disable-pip-version-check --no-input \
			install --no-compile --no-deps --require-hashes -r requirements/peers.lock && \
		cp requirements/peers.lock .venv/peers/lock; } || echo "the peers cannot be installed; going on without" >&2
	@scripts/programs
	@$(PY) -m bench $(ONLY)

sim: setup-dev ## play new random histories in virtual time (SEEDS=500, HOURS=6: of each; SEED=n: from this seed on)
	@.venv/bin/deltaci sim --seeds $(or $(SEEDS),500) --hours $(or $(HOURS),6) \
		--seed $(or $(SEED),$$(od -An -N3 -tu4 /dev/urandom | tr -d ' '))

chaos: setup-dev ## kill, starve and break real processes, and count what is lost (ONLY=servers_killed: that one)
	@$(PY) -m chaos $(ONLY)

lock: setup-dev ## write the locks again (UPGRADE=1: with newer versions)
	@$(LOCK) pyproject.toml requirements/runtime.in --output-file requirements/runtime.lock
	@$(LOCK) --all-extras pyproject.toml requirements/runtime.in requirements/dev.in --output-file requirements/dev.lock
	@# pip takes psycopg[binary] from hashes only if the lock names the extra.
	@$(LOCK) --no-strip-extras requirements/peers.in --output-file requirements/peers.lock

clean: ## remove what make made (never the data in .state)
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis bench/out chaos/out build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup-runtime:
	@scripts/setup runtime

setup-dev:
	@scripts/setup dev
