# Everything runs in .venv, which the first target to need it makes: only make and Python 3.11, 3.12 or 3.13 must be
# there. PYTHON=<path> names the Python to use, WORKERS=<n> the number of test processes, UPGRADE=1 lets `make lock`
# take newer versions.

SUPPORTED := (3, 11) <= sys.version_info[:2] <= (3, 13)
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import sys; sys.exit(not $(SUPPORTED))' 2>/dev/null && echo $$python && break; done)
WORKERS ?= 2
UPGRADE ?=


BIN := .venv/bin
INSTALLED := .venv/.installed
OLDEST_BIN := .venv-oldest/bin
OLDEST_INSTALLED := .venv-oldest/.installed
TPU_BIN := .venv-tpu/bin
TPU_INSTALLED := .venv-tpu/.installed
TPU_VM_INSTALLED := .venv-tpu-vm/.installed
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow soak lint types docs bench bench-all lock clean oldest flink kafka flink-jars kafka-jars tpu tpu-small tpu-vm accelerator dist

help:
	@echo "make demo    simulate a log, train on it, report: the results are in runs/demo"
	@echo "make test    the tests, without the slow ones"
	@echo "make slow    the slow tests"
	@echo "make soak    for hours: kills, fuzzing, products of options, faults put into the code, a pass over 20 million examples"
	@echo "make lint    style, formatting, and which module may import which"
	@echo "make types   type checks"
	@echo "make docs    the documentation as a site, in docs/_build/html"
	@echo "make bench   how fast it is, beside others and beside the machine's limits; numbers in runs/bench.json"
	@echo "make bench-all  every other benchmark, one after the other"
	@echo "make tpu     every kind of training step through the TPU's compiler, without a TPU; takes hours (needs Linux on x86-64)"
	@echo "make tpu-small  the same of a tiny model, for one generation, in minutes"
	@echo "make tpu-vm  .venv-tpu-vm, where TensorFlow uses the TPUs of this machine (needs Linux on x86-64)"
	@echo "make accelerator  a folder with training steps that jax runs on a GPU or TPU without TensorFlow, checked here"
	@echo "make oldest  the optimizers' tests and a short training with the oldest TensorFlow that is allowed"
	@echo "make lock    requirements.lock anew from pyproject.toml (UPGRADE=1: with newer versions)"
	@echo "make dist    sdist and wheel in dist/, checked as PyPI does, and tried in a fresh environment (needs the network)"
	@echo "make flink   the tests on a real Flink (needs Java 17, and Maven for the jars)"
	@echo "make kafka   the tests on a real Kafka and Flink"
	@echo "make flink-jars  Flink's job server with Beam's Kafka connector, into .java (needs Java 17 and Maven)"
	@echo "make kafka-jars  a Kafka broker, into .java; what tests of both find there they use"
	@echo "make clean   removes .venv, builds and caches"

# The lock holds uv too: pip installs that one, checked by its hash, and uv the rest, many times faster.
$(INSTALLED): requirements.lock setup.py pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found; make PYTHON=<path> names it" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not $(SUPPORTED) and "error: $(PYTHON) is not Python 3.11, 3.12 or 3.13")'
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	$(BIN)/uv pip sync --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
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
	$(BIN)/pytest -m slow tests/test_java_services.py tests/pipelines/events/test_stream_flink.py

kafka: $(INSTALLED) flink-jars kafka-jars
	$(BIN)/pytest -m slow tests/pipelines/events/test_stream_kafka.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(INSTALLED)
	$(BIN)/mypy

docs: $(INSTALLED)
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html

bench: $(INSTALLED)
	$(BIN)/python benchmarks/bench.py

bench-all: $(INSTALLED)
	@set -e; for file in benchmarks/bench_*.py; do \
		test -e "$$file" || { echo "no benchmarks/bench_*.py"; break; }; \
		echo "$$file"; $(BIN)/python "$$file"; done

# Environments of their own: libtpu has the TPU's compiler, which needs no TPU; the oldest one has all of requirements.lock
# but for TensorFlow and what comes with it; that of a TPU VM has tensorflow-tpu in the place of tensorflow.
$(TPU_INSTALLED) $(TPU_VM_INSTALLED): NEEDS := : libtpu, the TPU's compiler and driver, is for Linux on x86-64 with glibc 2.31 or later, and comes from PyPI
.venv-%/.installed: requirements-%.lock $(INSTALLED)
	$(BIN)/python -m venv .venv-$*
	@$(BIN)/uv pip sync --python .venv-$*/bin/python --require-hashes $< || { \
		echo "error: $< cannot be installed here$(NEEDS); nothing was checked" >&2; exit 1; }
	$(BIN)/uv pip install --python .venv-$*/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

tpu: $(TPU_INSTALLED)
	$(TPU_BIN)/python benchmarks/tpu.py --json runs/tpu.json

tpu-small: $(TPU_INSTALLED)
	$(TPU_BIN)/python benchmarks/tpu.py --small --chips v5e --json runs/tpu-small.json
	$(TPU_BIN)/python benchmarks/accelerator.py --small --steps 12 --out runs/accelerator-small
	$(TPU_BIN)/python runs/accelerator-small/run.py --seconds 0.1

tpu-vm: $(TPU_VM_INSTALLED)

accelerator: $(TPU_INSTALLED)
	$(TPU_BIN)/python benchmarks/accelerator.py --out runs/accelerator
	$(TPU_BIN)/python runs/accelerator/run.py --seconds 0

oldest: $(OLDEST_INSTALLED)
	$(OLDEST_BIN)/pytest -n $(WORKERS) --dist loadfile -m "not soak" tests/optim tests/test_library.py

# The wheel is made of the sdist, so that the sdist has what a wheel needs.
dist: $(INSTALLED)
	rm -rf dist build
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	.ci/try-wheel $(BIN)/python dist/*.whl

# uv keeps the versions it finds in the present lock unless UPGRADE is set. The image has the package tensorflow-cpu of the
# same version, which is tensorflow without what GPUs need; a TPU VM has the oldest one's versions, and tensorflow-tpu.
# libclang is of no use to a program that runs.
lock: $(INSTALLED)
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --python-version 3.11 --python-platform linux \
		--extra train --extra tfrs --extra cloud --extra test --extra docs --generate-hashes \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
		--output-file requirements.lock pyproject.toml
	cp requirements.lock requirements-oldest.lock
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --python-version 3.11 --python-platform linux \
		--constraint requirements-oldest.in --extra train --extra tfrs --extra cloud --extra test --extra docs --generate-hashes \
		--custom-compile-command "make lock" --output-file requirements-oldest.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --python-version 3.11 \
		--python-platform x86_64-manylinux_2_31 --constraint requirements.lock \
		--extra train --group tpu --generate-hashes --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
		--output-file requirements-tpu.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --python-version 3.11 \
		--python-platform x86_64-manylinux_2_31 --constraint requirements-oldest.lock \
		--extra train --group tpu-vm --no-emit-package tensorflow --no-emit-package libclang --generate-hashes \
		--custom-compile-command "make lock" --output-file requirements-tpu-vm.lock pyproject.toml
	sed -n 's/^tensorflow==\([^ ]*\).*/tensorflow-cpu==\1/p' requirements.lock | \
		$(BIN)/uv pip compile --quiet --python $(BIN)/python --python-version 3.11 \
		--python-platform x86_64-manylinux_2_31 --constraint requirements.lock \
		--extra train --extra cloud --no-emit-package tensorflow --no-emit-package libclang --generate-hashes \
		--custom-compile-command "make lock" --output-file requirements-image.lock pyproject.toml -

clean:
	rm -rf .venv .venv-oldest .venv-tpu .venv-tpu-vm build dist docs/_build docs/reference/generated *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Java programs that run beside Python: fetched once, then nothing asks the network. .java outlives `make clean`.
flink-jars kafka-jars: %-jars: .java/%/.fetched

.java/%/.fetched: examples/%/pom.xml
	rm -rf $(@D)
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(@D)
	@touch $@
