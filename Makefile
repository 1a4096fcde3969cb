# make demo   sets up (once), runs the quickstart and writes a page about it
# make test   sets up (once) and runs every check
# make docs   sets up (once) and builds the documentation site into build/site
# make long   runs fleets into every fault, plans every preset, measures rates: half an hour
PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# browsers for the tests of the report page: those that are there, or Debian's where we may install them
BROWSER = command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get install -y -qq chromium >/dev/null 2>&1; }
FIREFOX = command -v firefox-esr >/dev/null || command -v firefox >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get install -y -qq firefox-esr >/dev/null 2>&1; }

.PHONY: demo test quick long lint docs clean

demo: .venv/demo.stamp
	$(BIN)/codecl run
	@$(BIN)/codecl report runs --no-figures
	@echo "open report/report.html in a browser to look at it"

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not alone and not long" -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m "alone and not long"

quick: .venv/dev.stamp
	$(BIN)/python -m pytest -m "not slow and not long" -x -q

long: .venv/dev.stamp
	$(BIN)/python -m pytest -m long
	EXAMPLES=200 $(BIN)/python -m pytest -m "not long" tests/laws

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/dev.stamp
	$(BIN)/sphinx-build -W --keep-going -n -q -c docs . build/site
	@echo $(CURDIR)/build/site/index.html

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "codecl needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "setting up .venv (once; a few minutes) ..."
	$(INSTALL) -e '.[peers]'
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "setting up .venv with the checks (once; a few minutes) ..."
	$(INSTALL) -e '.[dev]'
	@$(BROWSER) || echo "no chromium: tests of the report page are skipped (Debian: apt-get install chromium)"
	@$(FIREFOX) || echo "no firefox: the report page is tested in chromium only (Debian: apt-get install firefox-esr)"
	@touch $@ .venv/demo.stamp
