# Two commands on a fresh machine: `make run` and `make test`. Everything else is for people who work on celery_tm.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.installed-peers
GUIDED := $(VENV)/.installed-guided
PYTEST := $(BIN)/python -m pytest

.PHONY: audit bench bench-quick celery-suites chaos counted crash-points docs fuzz screenshots run lint soak storm storm-put-back test test-fast test-thorough versions check format clean help

help:            ## show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $(STAMP)

run: export TM_DEMO_SPEED ?= 60
run: $(STAMP)    ## start worker, beat and Flower on SQLite and files, with sample jobs
	cd beat && ../$(BIN)/python -m shop create
	cd beat && ../$(BIN)/celery -A app tm definitions load definitions.toml
	cd beat && ../$(BIN)/python -m samples
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/honcho start

# What is timed to the fraction of a second has the machine to itself.
test: $(STAMP)   ## run every test on every database and broker found
	$(PYTEST) -n 3 -m "not alone" tests/unit tests/contract tests/store tests/shop tests/faults tests/fuzz tests/soak tests/storm $(ARGS)
	$(PYTEST) -n 5 --dist loadgroup -m "not alone" tests/process tests/documents $(ARGS)
	$(PYTEST) -m alone tests/process tests/faults tests/soak tests/storm $(ARGS)

counted: $(STAMP) ## 2,000 transactional jobs on workers that are killed 200 times
	$(PYTEST) --thorough tests/process/test_at_home.py -k "counter and postgresql" $(ARGS)

chaos: export PYTHONPATH := tests
chaos: $(STAMP)  ## a load of every kind of job while everything is broken, then the verdict; MINUTES=30 PAIR=… SEED=… ARGS=…
	$(BIN)/python -m faults.run --minutes $(or $(MINUTES),30) --pair $(or $(PAIR),postgresql+redis) $(if $(SEED),--seed $(SEED)) $(ARGS)

storm: export PYTHONPATH := tests
storm: $(STAMP)  ## every pair of features on every stage of pools, databases, brokers and faults, then the verdict; SEED=… MORE=… ARGS=…
	$(BIN)/python -m storm.run $(if $(SEED),--seed $(SEED)) --more $(or $(MORE),40) $(ARGS)

storm-put-back: export PYTHONPATH := tests
storm-put-back: $(STAMP)  ## bring each mended defect back, and see who notices; ARGS: findings
	$(BIN)/python -m storm.put_back --output storm-put-back.md $(ARGS)

crash-points: $(STAMP)  ## write the list of all points at which a process is killed in tests anew; needs PostgreSQL and MariaDB
	PYTHONPATH=tests $(BIN)/python -m tmtest.crash_list

soak: export PYTHONPATH := tests
soak: $(STAMP)   ## hours of low load, watched for what grows; HOURS=4 PAIR=… ARGS=…
	$(BIN)/python -m soak.run --hours $(or $(HOURS),4) --pair $(or $(PAIR),postgresql+redis) $(ARGS)

$(GUIDED): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[fuzz]'
	touch $(GUIDED)

fuzz: export PYTHONPATH := tests
fuzz: $(GUIDED)  ## feed the parsers what reaches new lines of them, each for SECONDS=60; ARGS: one of them
	$(BIN)/python -m fuzz.guided --seconds $(or $(SECONDS),60) $(ARGS)

test-thorough: $(STAMP)  ## the same, and every test of real processes on every pair of database and broker
	$(MAKE) test ARGS="--thorough $(ARGS)"

test-fast: $(STAMP)  ## the tests that need no server and no process
	$(PYTEST) -q tests/unit tests/contract $(ARGS)

versions:        ## a part of the tests on every Celery, SQLAlchemy and Python found; about 5 minutes for each combination
	$(PYTHON) tests/versions/run.py $(ARGS)

lint: $(STAMP)   ## format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint audit ## the same, the audit, and the fast tests
	$(MAKE) test-fast

audit: export PYTHONPATH := tests
audit: $(STAMP)  ## whether the packages it runs on fit together, and whether any has a known vulnerability
	$(BIN)/python -m audit.run

celery-suites: $(STAMP)  ## Celery's own tests with our base class and without; ARGS: unit, integration, canvas, chord, …
	PYTHONPATH=tests $(BIN)/python -m celery_suites.run $(ARGS)

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	touch $(PEERS)

bench: $(PEERS)  ## measure against the peers, as ratios in one run, and draw the plot; needs PostgreSQL and Redis; 25 minutes
	$(BIN)/python -m benchmarks --json benchmarks/results.json $(ARGS)
	$(BIN)/python -m benchmarks.plot

bench-quick: $(PEERS)  ## the same with smaller sizes, and nothing is written; a few minutes
	$(BIN)/python -m benchmarks --quick $(ARGS)

docs: $(STAMP)   ## build the documentation into site/; a warning is an error
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshots: $(STAMP)  ## take the pictures of the pages for the docs; needs Chromium
	PYTHONPATH=tests $(BIN)/python docs/screenshots.py $(ARGS)

format: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:           ## remove the virtual environment and what runs left behind
	rm -rf $(VENV) site beat/.celery_tm beat/celery_tm.db* .pytest_cache .mypy_cache .ruff_cache
