# Everything runs in .venv, which the first command makes; nothing else on the machine is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint docs bench bench-overhead bench-requests bench-memory bench-fairness bench-admission bench-admission-short matrix matrix-short test-peers test-peers-short vllm test-vllm trl clean

help: ## List the commands
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "otel-pool needs Python 3.10 or later, and $(PYTHON) is " + sys.version.split()[0] + ": run make PYTHON=/path/to/python3.10")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[all]' --group dev
	@touch $@

demo: $(READY) ## Show queue time apart from engine time, and which of the two binds
	$(BIN)/otel-pool demo

test: $(READY) ## Run the tests that need nothing but this machine
	$(PYTEST) -m "not vllm and not slow"

test-slow: $(READY) ## Run those that take three seconds or more: the demo, servers with workers, faults at any line
	$(PYTEST) -m "slow and not vllm"

lint: $(READY) ## ruff, mypy strict, import contracts, and generated docs up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.pages --check

docs: $(READY) ## Write the generated pages again: metrics, settings, cases, engine states
	$(BIN)/python -m tools.pages

bench: bench-overhead bench-requests bench-memory bench-fairness bench-admission ## Run every benchmark

bench-overhead: $(READY) ## Client CPU of the aiohttp hook beside plain aiohttp and upstream
	$(BIN)/python benchmarks/overhead.py

bench-requests: $(READY) ## Client CPU of the urllib3 hook beside plain requests and upstream
	$(BIN)/python benchmarks/overhead_requests.py

bench-memory: $(READY) ## Resident memory over many requests and sessions, and when nothing collects
	$(BIN)/python benchmarks/memory.py

bench-fairness: $(READY) ## Who waits: plain aiohttp beside the fair queue
	$(BIN)/python benchmarks/fairness.py

bench-admission: $(READY) ## The gate beside the reference algorithm and no gate
	$(BIN)/python benchmarks/admission.py

bench-admission-short: $(READY) ## The same in about a minute, for CI
	$(BIN)/python benchmarks/admission.py --short

matrix: $(READY) ## Every supported Python with the ends of every minor of aiohttp and urllib3
	$(BIN)/nox -s matrix everything

matrix-short: $(READY) ## The oldest and the newest ends of the matrix
	$(BIN)/nox -s short

test-peers: $(READY) ## The libraries' own tests with our hook on
	$(BIN)/python -m tests.peers.run all

test-peers-short: $(READY) ## The part of test-peers that CI runs
	$(BIN)/python -m tests.peers.run all --short

vllm: $(READY) ## Install a real vLLM in an environment of its own and make a tiny model for it
	$(BIN)/python -m tests.vllm install

test-vllm: $(READY) ## Run the gate against a real vLLM (make vllm first)
	$(PYTEST) tests/vllm

trl: $(READY) ## Install TRL's client in an environment of its own; make test then runs it
	$(BIN)/python -m tests.pool.urllib3_trl.environment

clean: ## Remove what the commands above made here
	rm -rf $(VENV) .nox .pytest_cache .mypy_cache .ruff_cache .hypothesis
