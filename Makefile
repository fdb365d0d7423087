# Two commands do everything: `make demo` runs the main job, `make test` passes the tests.
# Each makes the virtual environment and installs what it needs, once.

# LOCK=no takes the newest versions that pyproject.toml allows, in an environment of its own: make test LOCK=no
LOCK   := requirements-dev.lock
VENV   := $(if $(filter no,$(LOCK)),.venv-newest,.venv)
PYTHON := $(VENV)/bin/python
BASE   ?= python3
STAMP  := $(VENV)/.installed
COMMA  := ,
EXTRAS := spark,connect,cli,console,metrics,aio,django,demo,peers,dev
PIP    := $(PYTHON) -m pip install --quiet --disable-pip-version-check
# Spark starts a Python process for each step of a query, and an editable installation is compiled by nobody before.
COMPILE := $(PYTHON) -m compileall -q src pyspark_latchwork
# Some of a test run is waiting for processes and servers, so six workers for the two cores it is meant for. Each may
# start a server of its own, and takes up to 1 GB of memory with it: fewer where there is little.
WORKERS ?= 6

# Where bytecode is not to be written, each worker, and each process that a test starts, would compile the tests again.
export PYTHONDONTWRITEBYTECODE :=
export PYSPARK_PYTHON := $(CURDIR)/$(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help install lock java demo test long quick changed server lint coverage soak payments replay bench docs monitoring pythons airflow release clean FORCE

help:           ## these lines
	@sed -n 's/^\([a-z]*\): .*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 16

install: $(STAMP) ## the virtual environment with everything in it; LOCK=no: newest versions

$(STAMP): pyproject.toml $(if $(filter no,$(LOCK)),FORCE,$(LOCK))
	@$(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; set BASE=python3.x"; exit 1; }
	@echo "installing into $(VENV), once: a minute or two"
	$(BASE) -m venv $(VENV)
ifeq ($(LOCK),no)
	$(PIP) --upgrade --upgrade-strategy eager --editable '.[$(EXTRAS)]'
else
	$(PIP) --require-hashes --requirement $(LOCK)
	$(PIP) --no-deps --no-build-isolation --editable .
endif
	@touch $(STAMP)

FORCE:          # the newest versions are looked for each time

lock:           ## requirements-dev.lock from pyproject.toml; UPGRADE=1: with the newest versions
	@test -x build/uv/bin/uv || { $(BASE) -m venv build/uv && build/uv/bin/python -m pip install --quiet uv; }
	build/uv/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.10 --generate-hashes \
	  $(patsubst %,--extra %,$(subst $(COMMA), ,$(EXTRAS))) \
	  --no-annotate --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --output-file requirements-dev.lock

java:
	@java -version 2>&1 | sed -n 's/^[^"]*version "\([0-9]*\).*/\1/p' | grep -qE '^(1[7-9]|[2-9][0-9])$$' || { \
	  echo "Java 17 or newer is needed for Spark and ZooKeeper: install a JDK (Debian: apt-get install openjdk-17-jre-headless)"; exit 1; }

# Java comes up in half the time with an archive of the classes that it loads.
$(VENV)/flights.jsa: $(STAMP)
	@echo "making Java's archive of Spark's classes, once: half a minute"
	@$(PYTHON) examples/flights/archive.py >/dev/null 2>&1 || echo "no archive was made; the demo runs without it"

demo: java $(STAMP) $(VENV)/flights.jsa ## the main job: three farms of Spark jobs on real flights, one latch
	@$(COMPILE)
	@$(PYTHON) examples/flights/run.py

# Otherwise each of pytest's workers compiles all tests for itself.
$(VENV)/.compiled: $(STAMP) $(shell find src pyspark_latchwork tests -name '*.py')
	@$(COMPILE)
	@for part in tests/queue "tests --ignore tests/queue"; do $(PYTHON) -m pytest --collect-only $$part > /dev/null 2>&1 & done; wait
	@touch $@

# The tests have three sizes (tests/support/scale.py). `make test` runs a tenth: of the matrices a sample that is another
# one each day, of random runs fewer seeds; no test that is marked `long`; and a test that takes more than 5 s of
# processor time fails unless it is marked `slow`. `make long` runs all, whole. No failure is run once more.
AT_ONCE = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -r fE --durations 10
test: java $(VENV)/.compiled ## the tests: five to ten minutes on two cores, with a table of what was proved
	@LATCHWORK_CPU_LIMIT=5 $(PYTHON) -m pytest -m "not long" $(AT_ONCE) -o faulthandler_timeout=900

long: java $(VENV)/.compiled ## all tests, exhaustive, on all backends: 20 to 40 minutes
	@LATCHWORK_SCALE=1 $(PYTHON) -m pytest $(AT_ONCE)

# The tests that find most mistakes soonest: those that catch most mutants for each second that they take.
QUICK := tests/test_packaging.py tests/test_layers.py tests/test_errors.py tests/test_retry.py tests/store/test_once.py \
  tests/store/local/test_local.py tests/store/contract/test_contract.py tests/queue/sharded/test_promises.py tests/sim/test_counterexamples.py

quick: $(STAMP) ## lint, types, and the tests that find most mistakes soonest
	@$(MAKE) --no-print-directory lint
	@$(PYTHON) -m pytest -n 2 -k "not aerospike" $(QUICK)

changed: $(STAMP) ## the tests of the files that you have changed; make changed SINCE=origin/main
	@$(PYTHON) -m tools.changed $(if $(SINCE),--since "$(SINCE)")

server: $(STAMP) ## an Aerospike to try things on, until Ctrl-C: an asd on the PATH, or Docker
	@$(PYTHON) -m tools.start_server

lint: $(STAMP)  ## format, rules and types
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@! grep -rnE '^\s*(from|import) src\b' --include='*.py' . --exclude-dir='.venv*' --exclude-dir=build || { echo "import latchwork, never src"; exit 1; }
	@mkdir -p build/typing && ln -sfn ../../src build/typing/latchwork
	@MYPYPATH=build/typing $(PYTHON) -m mypy -p latchwork
	@MYPYPATH=build/typing $(PYTHON) -m mypy --strict tests/typing/every_primitive.py tests/typing/every_awaited_primitive.py tests/typing/every_task.py
	@$(PYTHON) -m tools.typed_pages build/typing/pages
	@MYPYPATH=build/typing $(PYTHON) -m mypy --strict build/typing/pages/*.py

# Modules whose every branch is taken by a test that asserts something, and the tests that are enough for that.
COVERED := src/retry.py src/background.py src/coord/contender.py src/coord/fencing.py src/coord/lease.py src/coord/lock.py \
  src/coord/latch/*.py src/coord/election/election.py src/queue/circular/queue.py src/queue/paged/queue.py \
  src/queue/sharded/queue.py src/queue/sharded/upkeep/sweeper.py \
  src/store/model/form.py src/store/local/*.py src/store/sqlite/*.py src/store/aerospike/*.py
COVERED_BY := tests/test_retry.py tests/coord tests/store tests/queue/circular tests/queue/sharded tests/queue/paged \
  tests/queue/test_unreadable_rows.py
LONGER := mutants or kills or histories or faults or states or differential or promises or processes

coverage: export COVERAGE_FILE := $(CURDIR)/build/coverage/data
coverage: export LATCHWORK_SCALE := 1
coverage: java $(STAMP) ## that no branch of the modules that everything rests on is untested; needs a real Aerospike
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(PYTHON) -m coverage run -m pytest $(COVERED_BY) -k "not ($(LONGER))" --hypothesis-seed=0
	@$(PYTHON) -m coverage combine --quiet
	@$(PYTHON) -m coverage report --show-missing --fail-under=100 $(COVERED)

soak: java $(STAMP) ## the long figures, up to 90 minutes: make soak MINUTES=10; WRITE=1 for docs/reliability.md
	@$(PYTHON) -m tests.sim soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(WRITE),--write)

payments: java $(STAMP) ## 8 workers killed and stopped for 10 minutes, 100,000 payments over 1,000 accounts
	@LATCHWORK_SERVERS=required LATCHWORK_SCALE=2 nice -n 10 $(PYTHON) -m pytest -q tests/queue/sharded/test_payments_killed.py -k aerospike

replay: $(STAMP) ## one simulated history as a table: make replay SEED=7 PRIMITIVE=latch
	@$(PYTHON) -m tests.sim replay --seed "$(SEED)" --primitive "$(PRIMITIVE)"

bench: java $(STAMP) ## the rows of docs/benchmarks.md beside their anchors: all, or make bench ONLY=latch,lock
	@$(COMPILE)
	@$(PYTHON) -m benchmarks.run $(if $(ONLY),--only $(ONLY) --write)

# The script that draws the diagrams is 3.6 MB: it is copied from a package, where npm is there, and is not in the repository.
MERMAID = mermaid@11.17.2
build/$(MERMAID):
	@mkdir -p $@
	@cd $@ && { npm pack --silent $(MERMAID) >/dev/null 2>&1 && tar xzf mermaid-*.tgz --strip-components=2 package/dist/mermaid.min.js && rm mermaid-*.tgz; } || \
	  { rm -rf "$(CURDIR)/$@"; echo "no npm, or no network: readers' browsers will load Mermaid from elsewhere"; }

docs: $(STAMP) build/$(MERMAID) ## the site of the pages in docs and of the docstrings, into build/site
	@mkdir -p build/typing && ln -sfn ../../src build/typing/latchwork
	@$(PYTHON) -m mkdocs build --quiet --strict && echo "the site is there: open build/site/index.html"

monitoring: $(STAMP) ## deploy/monitoring: the dashboard and the alerts, from the registry of the metrics
	@$(PYTHON) -m tools.monitoring

pythons: $(STAMP) ## the tests over memory and SQLite on every Python that is claimed and that is here
	@$(PYTHON) -m tools.pythons

# Airflow brings 200 packages, so it has an environment of its own, with the newest version that pyproject.toml allows.
.venv-airflow/.installed: pyproject.toml
	$(BASE) -m venv .venv-airflow
	.venv-airflow/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[airflow]' "pytest>=9,<9.2" pytest-xdist
	@touch $@

airflow: .venv-airflow/.installed ## the tests of latchwork.airflow, on a real Airflow in .venv-airflow
	@.venv-airflow/bin/python -m pytest tests/airflow

release: $(STAMP) ## sdist and wheel in dist, checked, installed into clean environments and tried
	@$(PYTHON) -m tools.release

clean:          ## what the build made; the virtual environment too
	rm -rf build dist out .venv .venv-*
