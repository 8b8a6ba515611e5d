# Every target sets up what it needs: a virtual environment in .venv with the package and its extras.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo chaos chaos-docker chaos-check chaos-sim chaos-sim-beside chaos-seeds chaos-mutants test test-kerberos test-python tests-side-by-side test-long test-failures test-spark-cluster test-notebook fuzz fuzz-guided fuzz-strangers check format docs bench bench-console bench-spark bench-spark-cluster bench-spark-triggers bench-failover bench-groups bench-instructions bench-kafka bench-metrics bench-paper bench-processes bench-scale bench-security sim compat compat-junit compat-kafka compat-kafka-record compat-spark compat-tools compiled compiled-wheels test-compiled image wheelhouse docker-test test-console clean
.DEFAULT_GOAL := help

# Tests start hundreds of nodes. If no bytecode may be written, each of them compiles the whole package again.
unexport PYTHONDONTWRITEBYTECODE

help:                ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV): with PySpark that is a download of some 500 MB and takes minutes."
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@ln -sf ../../chaos/kraftpy-chaos $(BIN)/kraftpy-chaos
	@touch $@

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV): with PySpark that is a download of some 500 MB and takes minutes."
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

demo: $(VENV)/.demo  ## real flights through three nodes, one killed meanwhile, and a Spark pipeline; an audit
	$(BIN)/kraftpy demo

test: $(VENV)/.dev   ## the tests, and chaos-sim beside them: its output follows theirs
	@sh tests/system-packages.sh $(BIN)/python
	@$(MAKE) --no-print-directory --jobs 2 --keep-going tests-side-by-side chaos-sim-beside; \
		status=$$?; cat build/chaos-sim.txt; exit $$status

KERBEROS_TESTS := tests/security/test_gssapi.py tests/security/test_kerberos_names.py tests/security/test_kerberos_listeners.py \
	tests/security/test_quorum_mechanisms.py
test-kerberos: $(VENV)/.dev  ## logins by Kerberos at a KDC of the tests' own: fails where `test` skips them (root installs krb5-kdc, libkrb5-dev)
	@sh tests/system-packages.sh $(BIN)/python
	@$(BIN)/python tests/kerberos_realm.py
	$(BIN)/python -m pytest $(KERBEROS_TESTS)

# The environment is one of its own, named after the interpreter; `make test-python PYTHON=python3.13 TESTS=tests/log`.
test-python:  ## the tests with another Python: make test-python PYTHON=python3.13
	$(PYTHON) -m venv .venv-$(notdir $(PYTHON))
	.venv-$(notdir $(PYTHON))/bin/python -m pip install --quiet --editable '.[dev]'
	.venv-$(notdir $(PYTHON))/bin/python -m pytest --numprocesses 4 --dist loadfile $(TESTS)

# mypyc compiles in place, so a copy of the sources is compiled. HATCH_BUILD_HOOKS_ENABLE asks pip for the same elsewhere.
compiled:            ## a wheel with the hot modules compiled, for this Python, into dist (a C compiler; minutes)
	rm -rf build/compiled && mkdir -p build/compiled
	git ls-files -z | tar --null --files-from - --create | tar --extract --directory build/compiled
	$(PYTHON) -m venv build/compiled/.venv
	cd build/compiled && HATCH_BUILD_HOOKS_ENABLE=1 .venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir ../../dist .

compiled-wheels: $(VENV)/.dev  ## such wheels for CPython 3.11 to 3.14, x86-64 and arm64 (Docker on Linux; macOS on a Mac)
	$(BIN)/python -m pip install --quiet 'cibuildwheel>=3.2'
	$(BIN)/python -m cibuildwheel --output-dir dist

test-compiled: $(VENV)/.dev compiled  ## the tests with compiled modules; simulated histories are the same bytes on both
	@sh tests/system-packages.sh $(BIN)/python
	cd build/compiled && PYTHONPATH=$(CURDIR)/build/compiled:$(CURDIR)/build/compiled/tests KRAFTPY_CHAOS_REPLACES_NOTHING=1 \
		../../$(BIN)/python -m pytest -p compiled_modules --numprocesses 4 --dist loadfile
	$(BIN)/python tests/chaos/compiled_histories.py build/compiled

# Nodes and clients wait for one another much of the time: four processes keep two cores busy.
tests-side-by-side:
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile

# A simulation has a clock of its own, so it may take the time that is left over.
chaos-sim-beside:
	@mkdir -p build
	@sh tests/leftover_time.sh $(MAKE) --no-print-directory chaos-sim >build/chaos-sim.txt 2>&1

check: $(VENV)/.dev  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## the documentation as a site, into build/docs: warnings and dead links are errors
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/docs
	$(BIN)/python docs/_ext/check_links.py build/docs

bench: $(VENV)/.dev  ## rates, start-up and memory, beside a peer's, into bench/RESULTS.md
	$(BIN)/python -m bench

sim: $(VENV)/.dev    ## all that is simulated: the quorum, replicas, compacted logs, power losses, thousands of runs; chaos-sim
	$(BIN)/python tests/quorum/simulation.py --changes 1000000
	$(BIN)/python tests/replication/replication_simulation.py --seeds 3000
	$(BIN)/python tests/replication/replication_simulation.py --seeds 500 --replicas 5
	$(BIN)/python tests/log/compaction_simulation.py --seeds 3000
	$(BIN)/python tests/log/power_loss.py --points 10000
	@$(MAKE) --no-print-directory chaos-sim

chaos-sim: $(VENV)/.dev  ## whole clusters, simulated under faults: seeds that once failed, and 30 of this version's own
	$(BIN)/python -m chaos sim --known --fresh 30 --minutes 1 --jobs 2 --shrink 0

chaos-seeds: $(VENV)/.dev  ## the same for hours: 2000 seeds of five minutes
	$(BIN)/python -m chaos sim --seeds 2000

chaos-mutants: $(VENV)/.dev  ## the product broken in known ways: which seed catches each, into chaos/MUTANTS.md
	$(BIN)/python -m chaos mutants

chaos: $(VENV)/.dev  ## three nodes in network namespaces under load and 12 faults: root, Debian's iptables (a few minutes)
	$(BIN)/python -m chaos run --world namespaces --faults 12

chaos-docker: $(VENV)/.dev  ## the same in containers: root, Docker, docker-compose, iptables (as root they are installed)
	sh tests/docker/engine.sh
	$(BIN)/python -m chaos run --world docker --faults 12

chaos-check: $(VENV)/.dev  ## every checker over a history: make chaos-check FILE=history.jsonl
	$(BIN)/python -m chaos check $(FILE)

bench-spark: $(VENV)/.dev  ## reading, streaming and writing with Spark, beside its own ceiling, into bench/SPARK.md
	$(BIN)/python -m bench.spark

bench-spark-cluster: $(VENV)/.dev  ## Spark's standalone cluster on one worker and two, and a model for 100 (root), into bench/SPARK_CLUSTER.md
	$(BIN)/python -m bench.spark_cluster

bench-spark-triggers: $(VENV)/.dev  ## the cost of a stream's triggers beside Spark's own Kafka connector's (JDK, Maven), into bench/SPARK_TRIGGERS.md
	$(BIN)/python -m bench.spark_triggers

bench-scale: $(VENV)/.dev  ## 20,000 partitions on a node, 200,000 in a cluster, 10,000 connections, 10,000 groups, into bench/SCALE.md
	$(BIN)/python -m bench.scale

bench-security: $(VENV)/.dev  ## TLS, SASL and quotas beside Apache Kafka (a JDK, Maven), into bench/SECURITY.md
	$(BIN)/python -m bench.security

bench-kafka: $(VENV)/.dev compiled  ## speed beside Apache Kafka, pure and compiled, one node and three (a JDK, Maven), into bench/KAFKA.md
	$(BIN)/python -m bench.kafka --compiled $(CURDIR)/build/compiled

bench-instructions: $(VENV)/.dev compiled  ## the instructions of a single request, interpreted and compiled (valgrind), into bench/INSTRUCTIONS.md
	$(BIN)/python -m bench.instructions --compiled $(CURDIR)/build/compiled

bench-metrics: $(VENV)/.dev  ## the cost of metrics: a node with and one without, in pairs; large pages, into bench/METRICS.md
	$(BIN)/python -m bench.metrics

bench-console: $(VENV)/.dev  ## the console's pages at a node with 5,000 partitions and 1,000 groups, into bench/CONSOLE.md
	$(BIN)/python -m bench.console

bench-paper: $(VENV)/.dev  ## the experiment of Kafka's first paper, beside Kafka, RabbitMQ and Artemis, into bench/PAPER.md (JDK, Maven, RabbitMQ)
	@sh bench/rabbitmq.sh
	$(BIN)/python -m bench.paper $(if $(MESSAGES),--messages $(MESSAGES))

bench-processes: $(VENV)/.dev  ## `kraftpy server --processes`: two beside one, and how it grows, into bench/PROCESSES.md
	$(BIN)/python -m bench.processes

bench-groups: $(VENV)/.dev  ## a thousand groups of ten members: joining, heartbeats, a failover, into bench/GROUPS.md
	$(BIN)/python -m bench.groups

bench-failover: $(VENV)/.dev  ## kills, pauses, cuts and restarts of three nodes, into bench/FAILOVER.md
	$(BIN)/python -m bench.failover

test-long: $(VENV)/.dev  ## the longest tests, of real nodes that fail under load
	@sh tests/system-packages.sh
	$(BIN)/python -m pytest -m long

KILLS ?= 50
test-spark-cluster: $(VENV)/.dev  ## Spark's master, workers and drivers on machines of their own, killed in turn (root): make test-spark-cluster KILLS=6
	KRAFTPY_SPARK_KILLS=$(KILLS) KRAFTPY_SPARK_SEED=$(SEED) $(BIN)/python -m pytest -p no:randomly -s tests/spark_cluster/cluster_suite.py

test-notebook: $(VENV)/.dev  ## the tutorial's notebook, in a real kernel
	$(BIN)/python -m pytest tests/spark/notebook_suite.py

FUZZ_SEED ?= 1
fuzz: $(VENV)/.dev   ## a million requests of every kind, legal and hostile, against one node and three: make fuzz FUZZ_SEED=7
	$(BIN)/python tests/fuzz/fuzz.py --requests 350000 --nodes 1 --seed $(FUZZ_SEED) --judge-latency
	$(BIN)/python tests/fuzz/fuzz.py --requests 250000 --nodes 1 --seed $(FUZZ_SEED) --judge-latency --flush-before-ack
	$(BIN)/python tests/fuzz/fuzz.py --requests 250000 --nodes 3 --seed $(FUZZ_SEED) --judge-latency
	$(BIN)/python tests/fuzz/fuzz.py --requests 150000 --nodes 3 --seed $(FUZZ_SEED) --judge-latency --flush-before-ack

fuzz-strangers: $(VENV)/.dev  ## 100,000 inputs each before a TLS handshake, before SASL and in SASL: nobody gets in
	$(BIN)/python tests/fuzz/strangers.py --seed $(FUZZ_SEED)

fuzz-guided: $(VENV)/.dev  ## atheris on one target: make fuzz-guided TARGET=regexes SECONDS=3600 (names: tests/fuzz/targets)
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	$(BIN)/python tests/fuzz/guided.py $(TARGET) --seconds $(or $(SECONDS),3600)

test-failures: $(VENV)/.dev  ## many more random failures than `test` has
	KRAFTPY_CLUSTER_ROUNDS=50 $(BIN)/python -m pytest tests/cluster/test_failures.py -k random --timeout 1800
	KRAFTPY_CLEANER_ROUNDS=20 $(BIN)/python -m pytest tests/broker/test_cleaning_process.py -k middle_of_cleaning --timeout 1800

format: $(VENV)/.dev ## rewrite the files as `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

compat: $(VENV)/.dev ## kafka-python's own tests against our server; Kafka's classes, clients, Spark connector with it (JDK, Maven)
	@sh tests/system-packages.sh $(BIN)/python
	$(BIN)/python tests/compat/kafka_python_suite.py
	$(BIN)/python tests/compat/java_suite.py
	$(BIN)/python tests/compat/java_share.py
	$(BIN)/python tests/compat/java_security.py
	$(BIN)/python tests/compat/secure_clients.py
	$(BIN)/python tests/compat/console_beside_kafka.py
	$(BIN)/python tests/compat/java_telemetry.py
	$(BIN)/python tests/compat/java_streams_suite.py
	$(BIN)/python tests/compat/spark_connector_suite.py

SEED ?= 1
NODES ?= 1
compat-kafka: $(VENV)/.dev  ## Apache Kafka and kraftpy asked the same, answers compared: make compat-kafka SEED=1 NODES=3 (JDK, Maven)
	$(BIN)/python tests/compat/differential/differential.py --seed $(SEED) --nodes $(NODES)
	$(BIN)/python tests/compat/differential/differential.py --seed $(SEED) --world rights
	$(BIN)/python tests/compat/differential/differential.py --seed $(SEED) --world tokens
	$(BIN)/python tests/compat/differential/differential.py --seed $(SEED) --world no-tokens

compat-kafka-record: $(VENV)/.dev  ## keep what Apache Kafka answers, for the tests, wherever nothing differs (JDK, Maven)
	$(BIN)/python tests/compat/differential/differential.py --record
	$(BIN)/python tests/compat/differential/differential.py --world rights --record
	$(BIN)/python tests/compat/differential/differential.py --world tokens --record
	$(BIN)/python tests/compat/differential/differential.py --world no-tokens --record

# One class: CLASS=GetOffsetShellTest. With all below it: PACKAGE=org.apache.kafka.tools. Both take several, after commas.
comma := ,
compat-junit: $(VENV)/.dev  ## Kafka's own integration tests against our server: make compat-junit CLASS=.. PACKAGE=.. JOBS=2 KAFKA=1
	$(BIN)/python tests/compat/junit_suite.py $(addprefix --class ,$(subst $(comma), ,$(CLASS))) \
		$(addprefix --package ,$(subst $(comma), ,$(PACKAGE))) $(if $(JOBS),--jobs $(JOBS)) $(if $(KAFKA),--kafka)

compat-tools: $(VENV)/.dev  ## Kafka's command line tools against Apache Kafka and kraftpy: the same output (JDK 17 to 23, Maven)
	$(BIN)/python tests/compat/tools/tools_suite.py

compat-spark: $(VENV)/.dev  ## queries through Spark's own Kafka connector and ours: the same rows (JDK, Maven)
	$(BIN)/python tests/compat/spark_connector_suite.py

image:               ## the container image `kraftpy`
	docker build --file docker/Dockerfile --tag kraftpy .

wheelhouse: | $(BIN)/python  ## wheels for an image that is built where no package index is reached
	PYTHON=$(BIN)/python docker/wheelhouse.sh

docker-test: $(VENV)/.dev wheelhouse  ## the image and the compose cluster, with a real engine (as root it is installed)
	sh tests/docker/engine.sh
	$(BIN)/python -m pytest -p no:randomly tests/docker/compose_suite.py tests/docker/chaos_suite.py

$(VENV)/.browser: pyproject.toml | $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --editable '.[browser]'
	@touch $@

AXE_CORE := 4.14.1
build/axe-core-$(AXE_CORE)/package/axe.min.js:
	@mkdir -p $(@D)
	npm pack --silent --pack-destination build axe-core@$(AXE_CORE)
	tar --extract --gzip --file build/axe-core-$(AXE_CORE).tgz --directory build/axe-core-$(AXE_CORE)
	@touch $@

test-console: $(VENV)/.browser build/axe-core-$(AXE_CORE)/package/axe.min.js  ## the console in Chromium, with axe-core; one of three nodes is killed (npm)
	sh tests/console/chromium.sh
	KRAFTPY_AXE=build/axe-core-$(AXE_CORE)/package/axe.min.js $(BIN)/python -m pytest -p no:randomly --timeout 600 tests/console/browser_suite.py

clean:               ## remove what the targets made
	rm -rf $(VENV) build dist demo-output kraftpy-data docker/wheelhouse/*.whl
