# `make demo` and `make test` need only Python 3.11 or newer. The first call builds .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format bench docs release-check clean

demo: .venv/installed
	$(BIN)/longfire compare

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/installed
	$(BIN)/longfire bench bias --out results/bench/cpu-bias.json
	$(BIN)/longfire bench attention --device cpu --out results/bench/cpu-attention.json
	$(BIN)/python -m benchmarks.update

release-check: .venv/installed
	$(BIN)/python -m benchmarks.release_check

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "site/index.html"

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "longfire needs Python 3.11 or newer, and $(PYTHON) is older. Try: make PYTHON=python3.12 …"; exit 1; }
	@echo "Building .venv (once; takes a minute or two)."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
