# natsproto from a fresh clone. `make` alone lists the targets.
#
# Every target sets itself up in $(VENV) and does it again only when pyproject.toml has changed.
#
#   make test PYTHON=python3.13 VENV=.venv-313     another Python, in an environment of its own
#   make test SPARK=4.0.5 VENV=.venv-spark4.0      another Spark, in an environment of its own (test-spark-full too)
#   make test ARGS="-k headers -x"                 options for pytest; `make bench ARGS=--quick` likewise
#   make test WORKERS=4                            processes that share the tests (default: one a core)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
WORKERS ?= auto

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # every worker of the tests and every program they start would compile everything anew

# Tests of one group (Spark, packaging, nats.js ...) go to one worker; those of a file may be shared by all.
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup
# Workers of the tests import natsproto before any plugin could measure it, so that coverage starts with the interpreter.
COVERED := $(BIN)/coverage run -m pytest --numprocesses $(WORKERS) --dist loadgroup

# What each target needs beyond the Python standard library.
NEEDS_run := --editable '.[server]'
NEEDS_test := --editable '.[nkeys,proxy,ws,uvloop,server,spark]' --group test $(if $(SPARK),'pyspark==$(SPARK)')
NEEDS_pipeline := --editable '.[server,spark]'
NEEDS_spark-zip := 'build>=1.2'
# Spark too: without its types mypy would take everything that natsproto.spark hands to it and gets from it for Any.
NEEDS_check := --editable '.[nkeys,proxy,ws,uvloop,server,spark]' --group dev
NEEDS_bench := --editable '.[uvloop,server,ws]' --group bench
# Its hook imports the modules whose records it shows.
NEEDS_docs := --editable '.[nkeys,otel]' --group docs
NEEDS_soak := --editable '.[server]'
NEEDS_hunt := --editable '.[nkeys,proxy,ws,uvloop,server,spark]' --group test
# One of FastStream's tests reads a private attribute of nats-py.
FASTSTREAM_TESTS = '$(CURDIR)/$(BIN)/python' -m pytest -p nats_py_replaced tests/brokers/nats \
	--deselect tests/brokers/nats/test_test_client.py::TestTestclient::test_inbox_prefix_with_real
NEEDS_frameworks := --editable '.[server]' --requirement tests/compat/programs/requirements.txt
NEEDS_fuzz := --editable '.[nkeys,proxy,ws,server]' --group test --group fuzz

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help frameworks frameworks-here run test test-all test-spark-full pipeline spark-zip check bench docs fresh release soak soak-cluster fuzz hunt clean same-python

help: ## say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.ready-run ## start a real nats-server and tell docs/examples/quickstart.py against it
	@$(BIN)/python docs/examples/quickstart.py

test: $(VENV)/.ready-test ## every feature on the real server, about five minutes on two idle cores (ARGS= for pytest)
	@$(BIN)/python -m tests.spark.java "the tests that run on it are skipped" || true
	@$(PYTEST) --durations=15 --durations-min=1 $(ARGS)

test-all: $(VENV)/.ready-test ## all tests, the slow ones too, with ten times the examples and the coverage (ARGS= for pytest)
	@$(BIN)/python -m tests.spark.java "the tests that run on it are skipped" || true
	@$(BIN)/coverage erase
	@$(COVERED) -m 'not (spark_full or hunt)' --hypothesis-profile=full $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered $(if $(ARGS),,--fail-under=97)

test-spark-full: $(VENV)/.ready-test ## the long tests on Spark: kill -9 again and again, clusters (ARGS= for pytest)
	@$(BIN)/python -m tests.spark.java
	@$(BIN)/python -m pytest -m spark_full $(ARGS)

pipeline: $(VENV)/.ready-pipeline ## the whole Spark pipeline with a kill -9 in the middle (ARGS="--orders 1000000")
	@$(BIN)/python -m tests.spark.java
	@$(BIN)/python docs/examples/pipeline/demo.py $(ARGS)

spark-zip: $(VENV)/.ready-spark-zip ## dist/natsproto-spark.zip for spark-submit --py-files: a wheel, under a name that Spark takes
	@$(BIN)/python -m build --wheel --outdir dist/spark . >/dev/null
	@mv dist/spark/natsproto-*.whl dist/natsproto-spark.zip && rmdir dist/spark
	@echo "spark-submit --py-files dist/natsproto-spark.zip ..."

check: $(VENV)/.ready-check ## ruff (lint and format), mypy --strict, pyright, import-linter and the sizes and words of tests/tools/house.py
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@report=$$(PYTHONPATH=. $(BIN)/pyright --pythonpath $(BIN)/python --verifytypes natsproto --ignoreexternal) || { echo "$$report"; exit 1; }
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.house

bench: $(VENV)/.ready-bench ## measure natsproto and nats-py side by side (ARGS= for benchmarks)
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.ready-docs ## build the site with the guides and the API reference into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file - < docs/mkdocs.yml
	@echo "The documentation is in site/index.html"

fresh: ## run, check, docs and a quick bench, each on a fresh clone of HEAD with an environment of its own
	@$(if $(filter file,$(origin PYTHON)),,PYTHON='$(PYTHON)') .ci/fresh

release: $(VENV)/.ready-test ## check what a release needs; creates no tag, and prints the commands that publish
	@.ci/release $(BIN)/python

soak: $(VENV)/.ready-soak ## a few minutes of mixed load with outages; fails on a leak (ARGS=--minutes=10)
	@$(BIN)/python -m tests.tools.soak $(ARGS)

soak-cluster: $(VENV)/.ready-soak ## JetStream, buckets, objects and locks on three servers that are cut off, killed and frozen (ARGS="--minutes=10 --seed=2")
	@$(BIN)/python -m tests.tools.soak_cluster $(ARGS)

fuzz: $(VENV)/.ready-fuzz ## fuzz parser, link and readers with atheris (ARGS="parser --seconds=600")
	@$(BIN)/python -m tests.fuzz $(ARGS)

hunt: $(VENV)/.ready-hunt ## everything random with fresh seeds; writes what it finds as tests (ARGS="--minutes=60 tests/protocol")
	@$(BIN)/python -m tests.tools.hunt $(ARGS)

frameworks: ## FastStream, taskiq-nats and Synadia's agents on natsproto.compat, twice each, in .venv-frameworks (FASTSTREAM=a checkout)
	@$(MAKE) --no-print-directory VENV=.venv-frameworks frameworks-here

frameworks-here: $(VENV)/.ready-frameworks
	@$(BIN)/python -m tests.compat.programs
	@$(if $(FASTSTREAM),cd '$(FASTSTREAM)' && PYTHONPATH='$(CURDIR)/tests/compat/programs/plugin:.' $(FASTSTREAM_TESTS) $(ARGS))

clean: ## remove the virtual environment and everything else that make has made
	rm -rf $(VENV) build dist site htmlcov .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache fuzz-found hunt-found
	find natsproto tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- setting up

$(VENV)/.ready-%: pyproject.toml $(VENV)/.made | same-python
	@echo "Installing what make $* needs into $(VENV)"
	@$(BIN)/python -m pip install --quiet $(NEEDS_$*)
	@touch $@

# An environment that was left half made is made again. pip 25.1 is the first to know dependency groups.
$(VENV)/.made: | same-python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "natsproto needs Python 3.11 or newer; $(PYTHON) is $(call version,$(PYTHON)). Name another one: make $(MAKECMDGOALS) PYTHON=python3.13" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "Making a virtual environment in $(VENV) with Python $(call version,$(PYTHON))"; $(PYTHON) -m venv --clear $(VENV); }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

# PYTHON=... has no effect on an environment that exists, which must not go unnoticed.
same-python:
ifeq ($(origin PYTHON),command line)
	@test ! -x $(BIN)/python || test "$(call version,$(BIN)/python)" = "$(call version,$(PYTHON))" || { \
		echo "$(VENV) holds Python $(call version,$(BIN)/python); $(PYTHON) is $(call version,$(PYTHON)). Run make clean, or add VENV=.venv-other" >&2; exit 1; }
else
	@:
endif

version = $$($(1) -c 'import platform; print(platform.python_version())' 2>/dev/null || echo missing)
