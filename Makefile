# `make` lists the targets. Everything is installed into .venv by the first target that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
CHOSEN := not soak and not ci
# `make test RECORD=--record-durations` writes what each file took to tests/durations.json; the longest begin first.
RECORD :=
SERVERS := kafka or spark
# Thousands of small files are synced to disk there: in memory, where a gigabyte or two are free, that costs nothing.
IN_MEMORY = $(if $(shell [ -w /dev/shm ] && df -Pm /dev/shm | awk 'NR == 2 && $$4 > 4096'),TMPDIR=/dev/shm)
# In Go, where there is Go: tests of them skip elsewhere.
PROGRAMS := versitygw actionlint
# The newest of each minor version that slackwater runs on, the oldest first; that of .venv is one more.
SPARKS := 4.0.5 4.1.4 4.2.1
# Before 4.2 pyspark leaves sockets to Python's collector, which would fail the test that runs by then.
UNCLOSED := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
# What stands in each file with tests that need Kafka or Spark: to collect the others takes each worker ten seconds.
WITH_SERVERS := mark\.(kafka|spark)|any_kafka
# What stands in each file of whose tests all need them: those that need neither need not collect it.
ONLY_WITH_SERVERS := ^pytestmark = .*mark\.(kafka|spark)
# Images of containers set it. Without what Python has compiled, each process compiles all of slackwater, and each of
# pytest's workers rewrites the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE
# Each process of the tests that imports numpy would start a thread for each core, which none uses.
test test-all matrix collect test-without-servers test-with-servers: export OPENBLAS_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help tour demo docs docs-serve test test-all matrix programs collect test-without-servers test-with-servers check format bench soak chaos faults simulate crashpoints mutants clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# In .venv, if it is there; else in an environment of its own, which needs no Java.
TOUR := $(if $(wildcard $(READY)),$(VENV),.cache/tour)
tour: $(TOUR)/.ready ## a recorded app to try the product on, in a minute (FOLDER=flights chooses where it stays)
	@$(TOUR)/bin/slackwater tour $(if $(FOLDER),--folder $(FOLDER))

.cache/tour/.ready: pyproject.toml constraints.txt
	@echo "installing into $(@D) …"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[serve]'
	@touch $@

demo: $(READY) ## the whole story on real data, in four to seven minutes; ACTS=2,5: with the acts before them that they need
	@$(BIN)/python examples/demo.py $(ACTS)

docs: $(READY) ## the documentation as a site, in build/docs/site: a dead link fails it (seconds)
	@$(BIN)/python -m docs.site build --strict

docs-serve: $(READY) ## show it at http://localhost:8000
	@$(BIN)/python -m docs.site serve

test: $(READY) ## all checks and tests, from nothing
	@$(MAKE) --no-print-directory -j 2 programs check collect
	@$(MAKE) --no-print-directory -j 2 test-without-servers test-with-servers

test-all: $(READY) ## the same with each server of S3, the oldest Spark, each point at which a verb may be killed, many more examples (hours)
	@SLACKWATER_PROFILE=ci PYTEST_ADDOPTS="--timeout 3600" $(MAKE) --no-print-directory CHOSEN="not soak" PROGRAMS="$(PROGRAMS) promtool helm azurite fake-gcs-server" test
	@$(MAKE) --no-print-directory SPARKS="$(firstword $(SPARKS))" matrix

# What needs Kafka alone is the same with every Spark. One that fails does not keep the next from being tried.
matrix: $(SPARKS:%=.cache/spark-%/.ready) ## the tests with Spark, on each older Spark (a quarter of an hour each)
	@failed=; for spark in $(SPARKS); do \
		echo "Spark $$spark"; \
		PYTEST_ADDOPTS="$(UNCLOSED) $$PYTEST_ADDOPTS" $(MAKE) --no-print-directory BIN=.cache/spark-$$spark/bin SERVERS=spark \
			test-with-servers || failed="$$failed $$spark"; \
	done; [ -z "$$failed" ] || { echo "failed on Spark$$failed"; exit 1; }

# With a Spark of its own, and all else from .venv.
.cache/spark-%/.ready: $(READY)
	@echo "installing Spark $* into $(@D) …"
	@$(PYTHON) -m venv --clear --without-pip $(@D)
	@$(VENV)/bin/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check --no-compile --no-deps pyspark==$* -e .
	@echo "import site; site.addsitedir('$$($(VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		> "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/rest.pth"
	@touch $@

# Before any test: what is fetched and built once may take longer than a test may.
programs: $(READY)
	@$(BIN)/python -m tests.programs $(PROGRAMS)

# Once for the five processes that run them, the assertions of all tests are rewritten as pytest does it.
collect: $(READY)
	@$(BIN)/python -m pytest -q --collect-only >/dev/null 2>&1 || true  # the tests themselves say what fails

# Spark and Kafka are waited for more than they work: three tests at a time have them, each with servers of its own, and
# what needs neither takes the rest of the machine meanwhile. Files begin in their order: left to itself, xdist begins those
# with the fewest tests last, which here take the longest.
test-without-servers: programs
	@$(IN_MEMORY) nice -n 3 $(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder -m "not kafka and not spark and $(CHOSEN)" $(RECORD) \
		$$(grep -rlE '$(ONLY_WITH_SERVERS)' tests --include='test_*.py' | sed 's/^/--ignore=/')

test-with-servers: programs
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "($(SERVERS)) and $(CHOSEN)" $(RECORD) \
		$$(grep -rlE '$(WITH_SERVERS)' tests --include='test_*.py' | LC_ALL=C sort)

check: $(READY) .types/slackwater ## formatting, lint, types, direction of imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@MYPYPATH=.types $(BIN)/mypy -m slackwater -m slackwater.testing $(addprefix -p slackwater.,common chandy_lamport store state snapshot pipeline operations client serve cli)
	@$(BIN)/lint-imports

format: $(READY) ## format the code and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Load for servers.
bench: PROGRAMS += vegeta
bench: $(PEERS) programs ## every figure beside its peer: a table, bench/out/results.json, bench/out/bench.svg (at most 90 minutes)
	@$(BIN)/python -m bench $(NAMES)

soak: programs ## for hours: real apps whose stages are killed, 100,000 schedules of the protocol, the store's models
	@$(BIN)/python -m pytest -q -m soak
	@SLACKWATER_SCHEDULES=128 $(BIN)/python -m pytest -q --timeout 0 tests/chandy_lamport/test_laws.py tests/end_to_end/test_diamond_law.py
	@SLACKWATER_PROFILE=nightly $(BIN)/python -m pytest -q --timeout 0 tests/models/test_state_model.py tests/models/test_gc_model.py tests/models/test_hostile_stores.py

chaos: programs ## kill a real app's processes for MINUTES=10, by SEED: is anything lost, doubled or damaged?
	@OPENBLAS_NUM_THREADS=1 nice -n 10 $(BIN)/python -m tests.chaos.run --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(TABLE),--table $(TABLE))

faults: $(READY) ## plant faults of each class in apps by chance: is each told for what it is? (SEEDS=20, CLASSES=deploy,join)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.faults.run --seeds $(or $(SEEDS),20) --classes "$(CLASSES)"

# Each file that kills verbs; `SEED=2 pytest --crash-points …` tries other points than the gate does.
crashpoints: $(READY) ## kill each verb at each of its calls to store and broker, and print what was hit (an hour)
	@SLACKWATER_PROFILE=ci OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n logical --timeout 0 --crash-points -m "not soak" \
		$$(grep -rl killed_at_each_call tests --include='test_*.py') -k "killed or given_up"

simulate: $(READY) ## whole apps on one seed each, under faults of storage, Kafka, machines and people (SEEDS=0:10000, JOBS=2)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.simulation "$(or $(SEEDS),0:200)" --jobs $(or $(JOBS),1)

mutants: $(READY) ## each small change of protocol, commit, merging, planning, …: do the tests notice? (an hour or two)
	@$(BIN)/python -m tests.mutation.run $(GROUPS)

clean: ## remove what the targets made (not .slackwater)
	rm -rf $(VENV) .types .cache/mutants .cache/spark-* .cache/tour .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build *.egg-info bench/out

# mypy wants the package under its name, which is the repository's root.
.types/slackwater:
	@mkdir -p .types && ln -sfn .. .types/slackwater

# Most of what is installed is never imported; Python compiles the rest when it is.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slackwater needs Python 3.11 or later; say make PYTHON=python3.11")'
	@echo "installing into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[agents,clouds,delta,demo,dev,iceberg,local,openlineage,otel,registry,serve]'
	@touch $@

# What only the benchmark compares with.
$(PEERS): $(READY)
	@echo "installing the benchmark's peers into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@
