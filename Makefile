# The only entry: each target installs what it needs first, and is quick the second time.
#   make demo [ARGS="--seconds 20"]   make test [ARGS="-k window"]   make check   make bench   make soak [ARGS="--seed 7"]   make fault [ARGS="--times 3"]   make clean

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test check format bench bench-audit explore soak-sim soak fault fuzz servers clean

demo: servers
	@$(BIN)/dedup demo --report build/demo.html $(ARGS)

# Without servers the rest still runs; pytest then says what is missing, and in CI fails for it.
test: $(READY)
	@$(BIN)/python -m dedup.testing.install || true
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup $(ARGS)

check: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: servers
	@$(BIN)/python -m tests.benchmarks $(ARGS)

# Half an hour on a quiet machine with two cores, 1 GB of disk; smaller with ARGS="--events 2000000".
bench-audit: $(READY)
	@$(BIN)/python -m tests.benchmarks.audit $(ARGS)

# Minutes: every state of small worlds around the production machines, over a million of them.
explore: $(READY)
	@$(BIN)/python -m tests.simulation.explore $(ARGS)

# Hours: a million long ways through random faults; make soak-sim ARGS="--seeds 10000" takes a minute or two.
soak-sim: $(READY)
	@$(BIN)/python -m tests.simulation.soak $(ARGS)

# Minutes: 100,000 messages under 300 faults; the history stays in build/soak and can be checked again.
soak: servers
	@$(BIN)/python -m tests.soak run $(ARGS)

# The whole fault matrix, 50 strikes of each cell on each RabbitMQ: hours. It goes on where it stopped with ARGS=--resume.
fault: servers
	@$(BIN)/python -m tests.fault $(ARGS)

# Minutes: a million mutated property tables through the codec; ARGS="--count 20000 --seed 7" for fewer or others.
fuzz: $(READY)
	@$(BIN)/python -m tests.hostile.fuzz $(ARGS)

# RabbitMQ, Erlang and Redis from Debian's packages, without root, unless servers are given or nothing can be assembled here.
servers: $(READY)
	@$(BIN)/python -m dedup.testing.install

# python-qpid-proton is compiled; without a compiler everything but the tests of AMQP 1.0 still runs.
AMQP10 := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[amqp10]'

# Stamped on pyproject.toml: pip runs again only when that changes.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dedup needs Python 3.11 or newer as '$(PYTHON)'; set PYTHON=... to name another one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && apt-get -qq -y install python3-venv >/dev/null; } || \
	  { echo "Python's venv module is missing: install it first (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python -a -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@echo "installing Python packages into .venv ..."
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[shim,eventlog,audit,postgres,dev]'
	@$(AMQP10) 2>/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && apt-get -qq -y install gcc python3-dev >/dev/null && $(AMQP10); } || \
	  echo "AMQP 1.0 is left out: python-qpid-proton has to be compiled (Debian, Ubuntu: apt-get install gcc python3-dev)" >&2
	@touch $@

clean:
	rm -rf .venv dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
