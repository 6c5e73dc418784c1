# One word each. Every target below builds .venv first when it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCKED := $(BIN)/python requirements/install.py
# Twice a small machine's cores: tests of real processes wait for about half of their time.
TEST_WORKERS ?= 4
UNIT_WORKERS ?= 2
SEED ?= 0
COUNT ?= 300
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install install-s3 install-spark install-dev up unit test test-long test-boards test-compose check format sim compat-java demo demo-compose demo-tenants demo-fleet bench lock test-packages dist release docs references test-console console-demo

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Tidelog needs Python 3.11 or newer")'
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.build: requirements/build.lock | $(BIN)/python
	@$(LOCKED) requirements/build.lock
	@touch $@

$(VENV)/.base: requirements/base.lock pyproject.toml $(VENV)/.build
	@$(LOCKED) requirements/base.lock
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.s3: requirements/s3.lock $(VENV)/.base
	@$(LOCKED) requirements/s3.lock
	@touch $@

$(VENV)/.spark: requirements/spark.lock requirements/java.lock $(VENV)/.base
	@$(LOCKED) requirements/spark.lock
	@command -v java >/dev/null || $(LOCKED) requirements/java.lock
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.base
	@$(LOCKED) requirements/dev.lock
	@touch $@

$(VENV)/.packages: requirements/packages.lock requirements/docs.lock $(VENV)/.dev
	@$(LOCKED) requirements/packages.lock
	@$(LOCKED) requirements/docs.lock
	@touch $@

$(VENV)/.docs: requirements/docs.lock $(VENV)/.base
	@$(LOCKED) requirements/docs.lock
	@touch $@

$(VENV)/spark-classes.jsa: requirements/dev.lock $(VENV)/.dev
	@$(BIN)/python -m tests.brief_java
	@touch $@

install: $(VENV)/.base ## build .venv with the locked dependencies and the tidelog command

install-s3: $(VENV)/.s3 ## the same with the client of S3, for object stores that are no directory

install-spark: $(VENV)/.spark ## the same with Spark, pyiceberg and the client of S3; with Java where there is none

install-dev: $(VENV)/.dev ## the same with what tests and checks need

up: install ## run a whole cluster here, until Ctrl-C
	@exec $(BIN)/tidelog up

unit: install-dev ## the quick tests: no processes, no Spark, no seeds, no waiting
	$(BIN)/python -m pytest -n $(UNIT_WORKERS) --dist worksteal -m unit

# Hundreds of processes import the same files: the first compiles them for all, whatever the shell says.
test: export PYTHONDONTWRITEBYTECODE :=
test: install-dev $(VENV)/spark-classes.jsa ## the test suite
	$(BIN)/python -m pytest -m "not long" -n $(TEST_WORKERS) --dist worksteal

test-long: export PYTHONDONTWRITEBYTECODE :=
test-long: install-dev $(VENV)/spark-classes.jsa ## planted mistakes in the simulator, and the jobs on a Spark cluster; PART=2/4: every fourth, from the second on
	$(BIN)/python -m pytest -m long $(if $(PART),--part $(PART)) -n $(TEST_WORKERS) --dist worksteal tests/sim tests/spark_offload

test-compose: install-dev ## docker-compose.yml for real, with the Docker daemon that is found
	$(BIN)/python -m pytest --override-ini addopts=--strict-markers -q -rs tests/compose

test-boards: install-dev ## boards and alarms with a real Prometheus and promtool (need Debian's package prometheus)
	$(BIN)/python -m pytest --override-ini addopts=--strict-markers -q -rs -n 2 --dist loadfile tests/prometheus

test-packages: $(VENV)/.packages ## what is shipped, tried as its users do: packages, units, Helm chart, docs site, schema registry
	$(BIN)/python -m pytest --override-ini addopts=--strict-markers -q -rs $(if $(ONLY),-k "$(ONLY)") tests/packages

release: $(VENV)/.base ## a whole release in dist/, signed: make release KEY=private.pem (docs/releases.md)
	@$(BIN)/python -m release.assembly $(or $(KEY),$(error KEY=FILE names the key that signs))

dist: $(VENV)/.build ## the sdist and the wheel, in dist/
	@$(BIN)/python -m release.distributions

test-console: install-dev ## the console in a real Chromium (Debian's package chromium)
	$(BIN)/python -m pytest --override-ini addopts=--strict-markers -q -rs tests/console_browser

check: install-dev ## formatting, lint, types, import and house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --override-ini addopts=--strict-markers -q tests/architecture

format: install-dev ## write the messages' types, format and fix what can be fixed
	$(BIN)/python -m tests.wire.message_stubs
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: install-dev ## replay simulation seeds: make sim SEED=7 COUNT=1
	$(BIN)/python -m tests.sim --seed $(SEED) --count $(COUNT) --jobs $(JOBS) --quiet

compat-java: install-dev ## Apache Kafka's own tools and exactly-once programs against a cluster; LONG=1: all of them, Connect and MirrorMaker, more versions and kills (need Java and Maven)
	$(BIN)/python -m bench.compat_java $(if $(LONG),--long)
	$(BIN)/python -m bench.compat_exactly_once $(if $(LONG),--long)
	$(if $(LONG),$(BIN)/python -m bench.compat_connect --long)

demo: install-dev ## 336,776 real flights through brokers, object store and Spark; a leader is killed on the way
	$(BIN)/python -m bench.demo

demo-compose: install-dev ## the same in the containers of docker-compose.yml, with MinIO
	$(BIN)/python -m bench.demo --compose

demo-tenants: install-dev ## 16 airlines as 16 tenants behind one TLS port, each with its own topic `flights` and its own key
	$(BIN)/python -m bench.demo_tenants

demo-fleet: install-dev ## 12 tenants on two cells: a noisy one is held, a slow broker is put aside, one more broker fills
	$(BIN)/python -m bench.demo_fleet

console-demo: install-dev ## the console on a cluster that replays the flights, until Ctrl-C; then pictures of its pages, into docs
	$(BIN)/python -m bench.demo_console

bench: install-dev ## beside Apache Kafka and haproxy on this machine (need Java, Maven; haproxy), the tier, and Spark over it
	@status=0; for rows in bench bench.proxy bench.tier bench.spark bench.spark_jobs; do \
		$(BIN)/python -m $$rows || status=$$?; done; exit $$status

docs: $(VENV)/.docs ## the docs as a site, in build/site: no link of it is broken
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

references: install ## write the pages that are made from settings, commands and levels
	$(BIN)/python -m release.reference_pages

lock: | $(BIN)/python ## resolve the dependencies again into requirements/*.lock
	$(BIN)/python requirements/lock.py
