# Everything that is done to lastword, by name: `make` lists it. Paths are relative: a clone may live in a folder with spaces in its name.
# Tools run as `python -m tool`: the first line of an installed script cannot hold such a path.

SHELL = /bin/sh
PY = .venv/bin/python
AZURITE = azurite@3.37.0
UV_VERSION = 0.13.8
# Two processes share the files, in the order of tests/conftest.py: each has a Spark session, and none starts its longest file last.
WHOLE = --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 25
ON_S3 = tests/test_service_on_s3.py tests/test_storm_on_s3.py tests/test_compose_on_hosts.py \
	"tests/test_cluster.py::test_the_service_does_the_demo_on_a_standalone_master_with_two_workers[S3]" \
	tests/test_failing_store.py tests/storage/delta/test_put.py \
	tests/storage/ledger/test_object_store.py tests/storage/tables/test_object_store.py tests/storage/append/test_key_lookup.py \
	tests/lastword/status/test_samples.py tests/test_several_processes.py::test_a_storm_on_an_object_store
# Of these, what needs no Spark and no S3.
ON_AZURE = tests/test_failing_store.py tests/storage/delta/test_put.py tests/storage/ledger/test_object_store.py tests/storage/tables/test_object_store.py \
	tests/storage/append/test_key_lookup.py tests/lastword/status/test_samples.py
VERSITYGW = github.com/versity/versitygw/cmd/versitygw@v1.8.0
AGAINST = tests/pyspark_lastword tests/streaming tests/lastword/service tests/lastword/spark

# Java is looked for when a target needs it, once for each command line; JAVA_HOME then names one that Spark can use.
WITH_JAVA = JAVA_HOME="$$(sh tools/prerequisites.sh java)" && export JAVA_HOME &&

# Without compiled modules each process that a test starts would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cdc java quick test against torture s3 azure image bench dist docs lint types layers rules coverage lock clean
.SUFFIXES:

help: ## this list
	@echo 'make TARGET, where TARGET is:'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1	\2/p' Makefile

setup: java .jars/.broker ## Python packages in .venv, jars in .jars; nothing else is installed
	@echo 'ready: `make demo` shows what it does, `make test` checks it'

java: # before anything is installed
	@sh tools/prerequisites.sh java >/dev/null

demo: java .jars/.spark ## the airports of the world as a compacted changelog
	@$(WITH_JAVA) $(PY) -m examples.airports.demo

demo-cdc: java .jars/.spark ## recorded change events of a PostgreSQL as typed tables, by one file of 25 lines
	@$(WITH_JAVA) $(PY) -m examples.change_events.demo

# JAVA_HOME leads nowhere, so that a test which needs a JVM without saying so fails.
quick: .venv/.installed ## what to run before each commit: style, types, layers, and the tests that need no JVM; under a minute
	@$(MAKE) --no-print-directory --jobs 2 lint types layers
	@JAVA_HOME=/nonexistent $(PY) -m pytest --quiet --numprocesses 2 --dist worksteal --hypothesis-profile quick \
		-m 'not jvm and not long and not torture and not s3 and not image'

test: java ## every check: style, types, layers, rules, all tests (not the torture)
	@began=$$(date +%s); $(MAKE) --no-print-directory .jars/.classes && $(MAKE) --no-print-directory --jobs 2 lint types layers rules \
		&& $(WITH_JAVA) $(PY) -m pytest $(WHOLE) \
		&& echo "make test: $$(( $$(date +%s) - began )) s in all"

coverage: .jars/.classes ## all tests again, measured: which branches of the product no test takes; pyproject.toml has the floor
	@$(PY) -m coverage erase
	@$(WITH_JAVA) $(PY) -m coverage run -m pytest $(WHOLE) --timeout 900
	@$(PY) -m coverage combine --quiet && $(PY) -m coverage report

against: .jars/.classes ## the tests of what runs on Spark, on another release of it: make against SPARK=4.0.5
	@test -n "$(SPARK)" || { echo 'which release? make against SPARK=4.0.5' >&2; exit 2; }
	@.bootstrap/uv venv --quiet --clear --python $(PY) .against/$(SPARK)
	@.bootstrap/uv pip sync --quiet --compile-bytecode --python .against/$(SPARK)/bin/python --require-hashes requirements.lock
	@.bootstrap/uv pip install --quiet --python .against/$(SPARK)/bin/python --no-deps pyspark==$(SPARK)
	@.bootstrap/uv pip install --quiet --python .against/$(SPARK)/bin/python --no-deps --no-build-isolation --editable .
	@$(WITH_JAVA) .against/$(SPARK)/bin/python -m pytest --numprocesses 2 --dist loadfile $(AGAINST)

torture: .jars/.classes .jars/.debezium ## random histories, a million lives of sources, crashes, restarts, a real PostgreSQL: four hours or more
	@$(WITH_JAVA) $(PY) -m pytest -m torture

s3: java .bootstrap/versitygw .jars/.s3 ## object stores, on a real S3 server, which Go builds: the service, Spark, commands, requests that fail
	@$(WITH_JAVA) LASTWORD_S3_SERVER="$$PWD/.bootstrap/versitygw" $(PY) -m pytest -m 'not torture' $(ON_S3)

azure: .venv/.installed .bootstrap/azurite ## Azure Blob Storage, on Azurite, which npm installs: what needs no Spark, commands, several processes, requests that fail
	@LASTWORD_AZURE_SERVER="$$PWD/.bootstrap/azurite/node_modules/.bin/azurite-blob" $(PY) -m pytest -m 'not torture' $(ON_AZURE)

image: .venv/.installed ## the image without Docker: built in a chroot by buildah on debootstrap's Debian, as root; its service runs
	@$(PY) -m pytest -m image tests/test_image.py

bench: .jars/.spark ## how fast it is here
	@$(WITH_JAVA) $(PY) -m benchmarks

dist: .venv/.installed ## sdist and wheel in dist/, built twice and equal byte for byte, and tried on Python 3.10 to 3.13
	@$(PY) -m tools.distributions

docs: .venv/.installed ## the documentation as a site, in site/
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo 'site/index.html'

lint: .venv/.installed ## ruff: rules and format; vulture: dead code
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m tools.dead_code

types: .venv/.installed ## mypy --strict
	@$(PY) -m mypy

layers: .venv/.installed ## import-linter: who may import whom
	@$(PY) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo

rules: .venv/.installed ## every branch of the pure rules (compaction/, change_data/) is taken by a worked example, without random ones
	@$(PY) -m coverage erase
	@$(PY) -m coverage run -m pytest --quiet tests/compaction tests/change_data -m 'not torture and not hypothesis'
	@$(PY) -m coverage combine --quiet && $(PY) -m coverage report --include 'compaction/*,change_data/*' --fail-under 100

lock: .bootstrap/.uv-$(UV_VERSION) ## pyproject.toml -> requirements.lock, with hashes, for every platform
	@.bootstrap/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
		--python-version 3.10 pyproject.toml --extra spark --group dev --output-file requirements.lock
	@.bootstrap/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
		--python-version 3.10 pyproject.toml --extra spark --constraint requirements.lock --output-file requirements-service.lock

clean: ## remove what setup and the tools made
	rm -rf .venv .against .bootstrap .jars .demo .demo-cdc .coverage .grimp_cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what setup is made of; each step leaves a stamp and is done again when what it depends on has changed -------------------------

# uv of exactly this version: the one on the PATH when it is that, else installed by pip into a folder of its own.
.bootstrap/.uv-$(UV_VERSION):
	@rm -rf .bootstrap && mkdir .bootstrap
	@if [ "$$(uv --version 2>/dev/null | cut -d ' ' -f 2)" = $(UV_VERSION) ]; then \
		printf '#!/bin/sh\nexec uv "$$@"\n' > .bootstrap/uv; \
	else \
		python="$$(sh tools/prerequisites.sh python)" && "$$python" -m venv .bootstrap/venv && \
		.bootstrap/venv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) && \
		printf '#!/bin/sh\nexec .bootstrap/venv/bin/python -m uv "$$@"\n' > .bootstrap/uv; \
	fi
	@chmod +x .bootstrap/uv && touch $@

# A .venv that is there and fit is kept: `make clean` starts anew.
.venv/.created: .bootstrap/.uv-$(UV_VERSION)
	@sh tools/prerequisites.sh usable $(PY) || { \
		python="$$(sh tools/prerequisites.sh python)" && .bootstrap/uv venv --quiet --clear --python "$$python" .venv; }
	@touch $@

.venv/.synced: requirements.lock .venv/.created
	@echo 'installing Python packages (requirements.lock)'
	@.bootstrap/uv pip sync --quiet --compile-bytecode --python $(PY) --require-hashes requirements.lock
	@rm -f .venv/.installed && touch $@

.venv/.installed: pyproject.toml .venv/.synced
	@.bootstrap/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation --editable .
	@touch $@

.jars/.spark: lastword/spark/jars.lock .venv/.installed
	@$(WITH_JAVA) $(PY) -m lastword.spark.jars
	@mkdir -p .jars && touch $@

.jars/.broker: .jars/.spark
	@$(WITH_JAVA) $(PY) -m lastword.spark.jars --group broker
	@mkdir -p .jars && touch $@

# What sends the events of a real PostgreSQL (tests/test_live_postgres.py); its own programs are the system's (Debian: apt install postgresql).
.jars/.debezium: .jars/.spark
	@$(WITH_JAVA) $(PY) -m lastword.spark.jars --group debezium
	@mkdir -p .jars && touch $@

.jars/.s3: .jars/.spark
	@$(WITH_JAVA) $(PY) -m lastword.spark.jars --group s3
	@mkdir -p .jars && touch $@

# An S3 server whose buckets are folders of a disk.
.bootstrap/versitygw: .bootstrap/.uv-$(UV_VERSION)
	@go="$$(sh tools/prerequisites.sh go)" && echo 'building versitygw, an S3 server' && \
		CGO_ENABLED=0 GOFLAGS=-modcacherw GOBIN="$$PWD/.bootstrap" GOPATH="$$PWD/.bootstrap/go" "$$go" install $(VERSITYGW)

# A server that imitates Azure Blob Storage, from its maker.
.bootstrap/azurite: .bootstrap/.uv-$(UV_VERSION)
	@npm="$$(sh tools/prerequisites.sh npm)" && echo 'installing Azurite, which imitates Azure Blob Storage' && \
		"$$npm" install --silent --no-save --prefix .bootstrap/azurite-new $(AZURITE) && mv .bootstrap/azurite-new $@

# Archives of the classes that the JVMs of tests load; they are of one Java and one environment.
.jars/.classes: .jars/.broker tests/jvms.py
	@echo 'archiving the classes that tests load'
	@rm -f .jars/*.jsa
	@$(WITH_JAVA) $(PY) -m tests.jvms spark .jars/spark.jsa && $(PY) -m tests.jvms broker .jars/broker.jsa
	@touch $@
