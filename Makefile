# Each target makes what it needs: `make demo` on a fresh clone sets everything up and runs the main job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
DEMO_ARGS ?=
# What CI installs is bounded: a plain `torch` could bring a CUDA build of several gigabytes.
STAMP := $(VENV)/.roost-installed

.PHONY: demo test test-long bench bench-setup lint clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Roost needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; say make PYTHON=python3.x") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[torch,rl,dev]"
	@touch $@

# The main job: GRPO on a trainer mesh, a generator mesh and reward actors; results in out/demo.
demo: $(STAMP)
	$(BIN)/python examples/grpo.py --out out/demo $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -m "not long" $(TEST_ARGS)

test-long: $(STAMP)
	$(BIN)/python -m pytest -m "long" --timeout 1200 $(TEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# mypy follows no import hooks, so the package is checked as it is installed.
	tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && root=$$PWD && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$$tmp" . && \
	  cd "$$tmp" && MYPYPATH="$$tmp" "$$root/$(BIN)/mypy" --config-file "$$root/pyproject.toml" --cache-dir "$$root/.mypy_cache" -p roost

bench-setup:
	$(PYTHON) -m benchmarks.setup

bench: bench-setup
	$(PYTHON) -m benchmarks.run --out .bench/results.json

clean:
	rm -rf $(VENV) .bench build dist out *.egg-info src/*.egg-info
