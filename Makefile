# `make help` lists the targets. Only Python 3.11+ and make are needed; everything else goes into .venv.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# The set-up compiles nothing ahead. Where this is set, every process would compile all that it imports, every time.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
BIN := .venv/bin
SMOKE_STORE ?= build/smoke
SGLANG_TESTS ?= tests/sglang
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
YAML := $(wildcard configs/*.yaml flows/*.yaml)

.PHONY: help setup setup-dev quickstart test sglang-env test-sglang test-deploy check check-yaml format smoke kill-stages kill-capture lock clean

help: ## This list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]+):.*## /\1\t/' | expand -t 16

setup: ## Virtual environment in .venv, with what the quickstart needs
	@PYTHON="$(PYTHON)" .ci/setup quickstart

setup-dev:
	@PYTHON="$(PYTHON)" .ci/setup quickstart dev test

quickstart: setup ## A real model, from prompts to a measured speed-up
	$(BIN)/specflow run full-pipeline --config configs/quickstart.yaml

test: setup-dev ## Tests, in two processes; pass arguments with ARGS="..."
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

sglang-env: ## Environment with SGLang on the CPU in .sglang-env, where ../shared has what makes one
	@.ci/sglang env

test-sglang: setup-dev ## Tests against a real SGLang server: SPECFLOW_SGLANG_PYTHON, else what `make sglang-env` made
	@.ci/sglang check
	$(ONE_THREAD) SPECFLOW_SGLANG_PYTHON="$${SPECFLOW_SGLANG_PYTHON:-$(CURDIR)/.sglang-env/bin/python}" \
		$(BIN)/python -m pytest $(SGLANG_TESTS) $(ARGS)

test-deploy: setup-dev ## Deployments on a real Prefect server and worker, the heavy ones too
	$(ONE_THREAD) $(BIN)/python -m pytest tests/e2e/test_deploy.py tests/e2e/test_scheduled_retraining.py -m "heavy or not heavy" $(ARGS)

check: setup-dev ## Lint, formatting, types, import layers, every shipped YAML
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=kernels $(BIN)/lint-imports
	$(MAKE) --no-print-directory check-yaml

check-yaml:
	$(BIN)/specflow schema --check $(YAML)

format: setup-dev ## Let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

smoke: setup ## The whole flow on a tiny random model, through Prefect
	$(ONE_THREAD) $(BIN)/specflow run full-pipeline --config configs/smoke.yaml --store $(SMOKE_STORE)

kill-stages: setup-dev ## The smoke flow, killed once in every stage at a random moment; pass arguments with ARGS="..."
	rm -rf build/kills
	$(ONE_THREAD) $(BIN)/python tests/e2e/kill_each_stage.py --config configs/smoke.yaml --store build/kills $(ARGS)

kill-capture: setup-dev ## A capture with two workers, killed at 50 random moments; pass arguments with ARGS="..."
	$(ONE_THREAD) PYTHONPATH=.:kernels $(BIN)/python tests/e2e/kill_capture.py --root build/kill-capture $(ARGS)

bench-%: setup ## benchmarks/%.py: side-by-side measurements; prints ratios
	$(BIN)/python benchmarks/$(subst -,_,$*).py $(ARGS)

lock: setup-dev ## Write the installed versions to constraints.txt
	@{ echo "# Every dependency, locked; used by make with pip install -c. Renew with: make lock"; \
	   $(BIN)/python -m pip freeze --exclude-editable | sed -E 's/^(torch==[0-9.]+)\+.*/\1/'; } > build.lock
	@mv build.lock constraints.txt

clean: ## Remove what was built (not .venv, not artifacts/)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
