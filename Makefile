# The only entry: each target installs what it needs first, and is quick the second time.
#   make demo [ARGS="--seconds 20"]   make test [ARGS="-k window"]   make check   make bench   make clean

PYTHON ?= python3
RABBITMQ ?= 4.0
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test check format bench servers clean

demo: $(READY) servers
	@$(BIN)/dedup demo $(ARGS)

test: $(READY) servers
	@$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(READY) servers
	@$(BIN)/python -m tests.benchmarks $(ARGS)

# RabbitMQ, Erlang and Redis from Debian's packages, without root. Whoever has servers elsewhere needs none of it,
# so a failure here only says why; the tests and the demo then look for another server, or say what to install.
servers: $(READY)
	@$(BIN)/python -m dedup.testing.install $(RABBITMQ) || true

# Stamped on pyproject.toml: pip runs again only when that changes.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dedup needs Python 3.11 or newer as '$(PYTHON)'; set PYTHON=... to name another one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && apt-get -qq -y install python3-venv >/dev/null; } || \
	  { echo "Python's venv module is missing: install it first (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python -a -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@echo "installing Python packages into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[shim,dev]'
	@touch $@

clean:
	rm -rf .venv dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
