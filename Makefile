# Everything that a person or CI runs. Each target works from a bare clone with Python 3.11, gcc and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests that run side by side: most of them wait for processes, so more than two cores need.
TESTERS ?= 5
# What people wrote; results of runs lie beside it, in out/. (`-L` below: an escaped café in a test, and a misspelling that a test is about.)
SPELLED := ./workers ./producer ./ops ./tests $(wildcard *.md) Makefile pyproject.toml compose.yaml

.PHONY: help setup fix check test sglang test-sglang run rehearse chaos bench lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## the locked packages into .venv

$(STAMP): requirements-dev.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH; name another with make PYTHON=…" >&2; exit 2; }
	@echo "installing the locked packages into $(VENV) (a minute) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

fix: setup ## format, and repair what can be
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: setup ## style, types, import rules, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports
	$(BIN)/codespell -L caf,temprature $(SPELLED)

test: setup ## all tests that need no download beyond the locked packages
	$(BIN)/pytest -m "not sglang" -n $(TESTERS) --dist worksteal

sglang: setup ## the real SGLang for this machine's CPU, two versions, into .cache (2 × 2.2 GB)
	$(BIN)/python -m ops.engines.cpu install 0.5.11
	$(BIN)/python -m ops.engines.cpu install 0.5.23

test-sglang: sglang ## the tests against the real SGLang
	$(BIN)/pytest -m sglang

run: setup ## prompts in, completions of a real model out: PROMPTS=file, KEEP=1
	$(BIN)/ops quickstart $(if $(PROMPTS),--prompts $(PROMPTS)) $(if $(filter-out 0,$(KEEP)),--keep)

rehearse: setup ## the same with a simulated engine
	$(BIN)/ops quickstart --simulated $(if $(PROMPTS),--prompts $(PROMPTS)) $(if $(filter-out 0,$(KEEP)),--keep)

chaos: setup ## 50 seeded rounds of faults on a fleet of this machine (most of an hour); ROUNDS, SEED
	$(BIN)/ops drill --s3 --faults-per-round 2 --rounds $(or $(ROUNDS),50) --seed $(or $(SEED),1)

bench: setup ## figures, each a ratio in one run
	$(BIN)/python -m tests.benchmarks

lock: ## compile the lock files again (needs uv on PATH)
	uv pip compile pyproject.toml --extra quickstart --universal --generate-hashes --no-header -q -o requirements.lock
	uv pip compile pyproject.toml --extra quickstart --group dev --universal --generate-hashes --no-header -q -o requirements-dev.lock

clean: ## remove what was built, not what was downloaded
	rm -rf build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
