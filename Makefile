# Everything runs in .venv, which the first target to need it makes: only make and Python 3.11, 3.12 or 3.13 must be
# there. PYTHON=<path> names the Python to use, WORKERS=<n> the number of test processes (by default that of the cores),
# UPGRADE=1 lets `make lock` take newer versions.

SUPPORTED := (3, 11) <= sys.version_info[:2] <= (3, 13)
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import sys; sys.exit(not $(SUPPORTED))' 2>/dev/null && echo $$python && break; done)
WORKERS ?= $(shell nproc)
UPGRADE ?=


BIN := .venv/bin
INSTALLED := .venv/.installed
OLDEST_BIN := .venv-oldest/bin
OLDEST_INSTALLED := .venv-oldest/.installed
TPU_BIN := .venv-tpu/bin
TPU_INSTALLED := .venv-tpu/.installed
TPU_VM_INSTALLED := .venv-tpu-vm/.installed
# From the lock as it is, into the environment that UV_PROJECT_ENVIRONMENT names (.venv).
SYNC = $(BIN)/uv sync --quiet --frozen --no-install-project
ALL_EXTRAS := --extra train --extra tfrs --extra cloud --extra test --extra docs
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow soak lint types docs evidence bench bench-all lock clean oldest flink kafka flink-jars kafka-jars tpu tpu-small tpu-vm accelerator dist

help:
	@echo "make demo    from raw events to a student of a teacher, compared and reported: the results are in runs/demo"
	@echo "make test    the tests, without the slow ones"
	@echo "make slow    the slow tests"
	@echo "make soak    for hours: kills, fuzzing, products of options, examples of the pages, golden runs, benchmarks, faults"
	@echo "make lint    style, formatting, and which module may import which"
	@echo "make types   type checks"
	@echo "make docs    the documentation as a site, in docs/_build/html"
	@echo "make evidence  the commands of pages that take minutes, again; fails where a number leaves its interval"
	@echo "make bench   how fast it is, beside others and beside the machine's limits; numbers in runs/bench.json"
	@echo "make bench-all  every other benchmark, one after the other"
	@echo "make tpu     every kind of training step through the TPU's compiler, without a TPU; takes hours (needs Linux on x86-64)"
	@echo "make tpu-small  the same of a tiny model, for one generation, in minutes"
	@echo "make tpu-vm  .venv-tpu-vm, where TensorFlow uses the TPUs of this machine (needs Linux on x86-64)"
	@echo "make accelerator  a folder with training steps that jax runs on a GPU or TPU without TensorFlow, checked here"
	@echo "make oldest  the optimizers' tests and a short training with the oldest TensorFlow that is allowed"
	@echo "make lock    uv.lock anew from pyproject.toml (UPGRADE=1: with newer versions)"
	@echo "make dist    sdist and wheel in dist/, checked as PyPI does, and tried in a fresh environment (needs the network)"
	@echo "make flink   the tests on a real Flink (needs Java 17, and Maven for the jars)"
	@echo "make kafka   the tests on a real Kafka and Flink"
	@echo "make flink-jars  Flink's job server with Beam's Kafka connector, into .java (needs Java 17 and Maven)"
	@echo "make kafka-jars  a Kafka broker, into .java; what tests of both find there they use"
	@echo "make clean   removes .venv, builds and caches"

# The lock holds uv too: pip installs that one, checked by its hash, and uv the rest, many times faster.
$(INSTALLED): uv.lock setup.py pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found; make PYTHON=<path> names it" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not $(SUPPORTED) and "error: $(PYTHON) is not Python 3.11, 3.12 or 3.13")'
	$(PYTHON) -m venv .venv
	$(PYTHON) .ci/locked_uv.py > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	$(SYNC) --compile-bytecode $(ALL_EXTRAS)
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(INSTALLED)
	$(BIN)/ctr demo --out runs/demo

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not soak"

# Exit status 5 says that there is no slow test, which is no failure.
slow: $(INSTALLED)
	$(PYTEST) -m "slow and not soak" || { status=$$?; test $$status -eq 5 || exit $$status; }

soak: $(INSTALLED)
	$(PYTEST) -m "not slow and not soak" --hypothesis-profile=random
	$(BIN)/pytest -m soak --hypothesis-profile=random
	$(BIN)/python tests/mutations/mutations.py
	$(BIN)/python benchmarks/bench_endurance.py

flink: $(INSTALLED) flink-jars
	$(BIN)/pytest -m "slow or soak" tests/pipelines/events/test_stream_flink.py

kafka: $(INSTALLED) flink-jars kafka-jars
	$(BIN)/pytest -m "slow or soak" tests/pipelines/events/test_stream_kafka.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(INSTALLED)
	$(BIN)/mypy

docs: $(INSTALLED)
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html

evidence: $(INSTALLED)
	$(BIN)/python -m doctest docs/check_evidence.py
	$(BIN)/python docs/check_evidence.py

bench: $(INSTALLED)
	$(BIN)/python benchmarks/bench.py

bench-all: $(INSTALLED)
	@set -e; for file in benchmarks/bench_*.py; do \
		test -e "$$file" || { echo "no benchmarks/bench_*.py"; break; }; \
		echo "$$file"; $(BIN)/python "$$file"; done

# Environments of their own: libtpu has the TPU's compiler, which needs no TPU; the oldest one has everything, with the
# oldest TensorFlow; that of a TPU VM has tensorflow-tpu in the place of tensorflow. libclang is of no use to a program
# that runs.
$(TPU_INSTALLED) $(TPU_VM_INSTALLED): NEEDS := : libtpu, the TPU's compiler and driver, is for Linux on x86-64 with glibc 2.31 or later, and comes from PyPI
$(OLDEST_INSTALLED): PACKAGES := $(ALL_EXTRAS) --group oldest
$(TPU_INSTALLED): PACKAGES := --extra train --group tpu
$(TPU_VM_INSTALLED): PACKAGES := --extra train --group tpu-vm --no-install-package tensorflow --no-install-package libclang
.venv-%/.installed: $(INSTALLED)
	$(BIN)/python -m venv .venv-$*
	@UV_PROJECT_ENVIRONMENT=.venv-$* $(SYNC) $(PACKAGES) || { \
		echo "error: .venv-$* cannot be installed here$(NEEDS); nothing was checked" >&2; exit 1; }
	$(BIN)/uv pip install --python .venv-$*/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

tpu: $(TPU_INSTALLED)
	$(TPU_BIN)/python benchmarks/study.py tpu --json runs/tpu.json

tpu-small: $(TPU_INSTALLED)
	$(TPU_BIN)/python benchmarks/study.py tpu --small --chips v5e --json runs/tpu-small.json
	$(TPU_BIN)/python benchmarks/study.py accelerator --small --steps 12 --out runs/accelerator-small
	$(TPU_BIN)/python runs/accelerator-small/run.py --seconds 0.1

tpu-vm: $(TPU_VM_INSTALLED)

accelerator: $(TPU_INSTALLED)
	$(TPU_BIN)/python benchmarks/study.py accelerator --out runs/accelerator
	$(TPU_BIN)/python runs/accelerator/run.py --seconds 0

oldest: $(OLDEST_INSTALLED)
	$(OLDEST_BIN)/pytest -n $(WORKERS) --dist loadfile -m "not soak" tests/optim tests/test_library.py

# The wheel is made of the sdist, so that the sdist has what a wheel needs.
dist: $(INSTALLED)
	rm -rf dist build
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	.ci/try-wheel $(BIN)/python dist/*.whl

# uv keeps the versions it finds in the present lock unless UPGRADE is set.
lock: $(INSTALLED)
	$(BIN)/uv lock $(if $(UPGRADE),--upgrade)

clean:
	rm -rf .venv .venv-oldest .venv-tpu .venv-tpu-vm build dist docs/_build docs/reference/generated *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Java programs that run beside Python: fetched once, then nothing asks the network. .java outlives `make clean`.
flink-jars kafka-jars: %-jars: .java/%/.fetched

.java/%/.fetched: examples/%/pom.xml
	rm -rf $(@D)
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(@D)
	@touch $@
