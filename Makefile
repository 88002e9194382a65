# Two commands do everything on a fresh machine: `make run` and `make test`.

# One name at a time: dash looks at the first alone.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))
VENV ?= .venv
ROUNDS ?= 40
# yes: compiles llama.cpp for this processor, which takes minutes and samples faster where it has AVX-512.
COMPILE ?= no
# Processes that share the tests, file by file: some files make one costly thing for all of their tests.
# Five on two cores, because the tests of the terminal app and of swarms wait for most of their time.
WORKERS ?= 5
BIN := $(VENV)/bin
# With it each process would compile the program again, and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE
# In the order of tests/conftest.py, not by the number of tests in a file.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: run test test-pythons test-lowest test-newest check lint benchmarks mutants size site clean

run: $(VENV)/.installed
	$(BIN)/sapo run --solo --rounds $(ROUNDS)

test: $(VENV)/.installed-test
	$(PYTEST) --durations=20

# Other versions of Python, where they are installed, without the libraries that are large or need a compiler.
test-pythons: test-python-3.12 test-python-3.13

# What works on 3.11 and 3.13 and can be imported on 3.12 seldom fails there: a minute of each run of CI saved.
test-python-3.12: MUCH = imports
test-python-%:
	@sh .ci/light $* $(MUCH)

# The backends with the lowest and the newest versions that pyproject.toml permits, beside the pinned ones.
test-lowest test-newest: test-%:
	@PYTHON=$(PYTHON) sh .ci/versions $*

check: lint
	$(PYTEST) -m "not slow"

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

benchmarks: $(VENV)/.installed-test
	$(BIN)/python -m tests.benchmarks

# Which small changes of a room's code its tests don't notice, for a random share of them: CONTRIBUTING.md.
ROOM ?= swarm/wire
SHARE ?= 0.05
mutants: $(VENV)/.installed-test
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m tests.mutants $(ROOM) --share $(SHARE)

# Lines of product and tests, words of docs, and how long the last `.ci/run` took.
size:
	@$(PYTHON) packaging/size.py

# The tests need all that a run needs, and more: installed at once.
$(VENV)/.installed: EXTRAS = starter,llama,web
$(VENV)/.installed-test: EXTRAS = starter,llama,test
$(VENV)/.installed $(VENV)/.installed-test: pyproject.toml constraints.txt packaging/system-packages.sh packaging/install.sh packaging/wheels.py
	COMPILE=$(COMPILE) sh packaging/system-packages.sh $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): 1.0 GB, a minute or two'
	@COMPILE=$(COMPILE) sh packaging/install.sh $(BIN)/python $(EXTRAS)
	touch $(VENV)/.installed $@

# The documentation as a static site, in build/site.
site:
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'zensical>=0.0.73,<0.1'
	.venv-docs/bin/python packaging/pages.py

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
