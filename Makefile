# Everything a stranger needs; each target sets up its own environment first.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What is compiled lies beside the environment, and comes first for who asks for it.
COMPILED_AT := build/compiled
COMPILED_READY := $(COMPILED_AT)/.ready
AS_COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(COMPILED_AT)/lib:$(CURDIR)
# With COMPILED=1 what is run is the compiled build.
BUILT := $(READY) $(if $(COMPILED),$(COMPILED_READY))
RUN := $(if $(COMPILED),$(AS_COMPILED) )$(BIN)/python

.PHONY: help demo up test test-compiled test-gpu test-real test-triton test-vllm test-pyvoy check bench compiled loadtest scenarios render lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "Python 3.11 to 3.13 is needed, this is %d.%d; say make PYTHON=python3.12" % v)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(BUILT) ## the same overload, gate off and on (COMPARE=1: also the best static limit; CUT=1: also blind; KILL=scrape|stream: lose a source in mid-run; LOG=cut: lose the access log for a while; FLUSH=1s: get it that rarely)
	@$(RUN) -m loadtest.demo $(if $(COMPARE),--compare) $(if $(CUT),--cut) $(if $(KILL),--kill $(KILL)) $(if $(LOG),--log $(LOG)) $(if $(FLUSH),--flush $(FLUSH))

up: $(BUILT) ## leave the demo's servers running
	@$(RUN) -m loadtest.demo --up

test: $(READY) ## all tests, Envoy and other real servers included, but those of the four targets below
	@$(BIN)/python -m pytest

test-compiled: $(COMPILED_READY) ## the tests of what is compiled, on the compiled build
	@$(AS_COMPILED) $(BIN)/python -m pytest --import-mode=append tests/unit tests/property

test-gpu: $(READY) ## against a real GPU's driver
	@$(BIN)/python -m pytest tests/integration/test_nvml_real_gpu.py

test-real: test-triton test-vllm ## against real model servers, in environments under .cache

test-triton: $(READY) ## against a real Triton (0.4 GB, half a minute; the system's own Python)
	@$(BIN)/python -m pytest tests/real/test_triton.py

test-vllm: $(READY) ## against a real vLLM on the CPU (3 GB, minutes)
	@$(BIN)/python -m pytest tests/real/test_vllm.py

test-pyvoy: $(READY) ## the contract of hosts and all tests through Envoy, with the fast host in an environment under .cache
	@TEST_HOST=pyvoy $(BIN)/python -m pytest tests/real/test_pyvoy.py tests/contracts/test_host.py tests/integration/test_serving_*.py tests/integration/test_edge_*.py

check: $(READY) ## format, lint, types, architecture
	@$(BIN)/ruff format --quiet --check . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m pytest -o addopts= -q --no-header --no-summary -p no:cacheprovider tests/test_architecture.py > /dev/null || $(BIN)/python -m pytest tests/test_architecture.py

bench: $(BUILT) ## speed, as ratios taken in one run (COMPILED=1, as for demo and up: of the compiled build)
	@$(RUN) -m tests.benchmarks

compiled: $(COMPILED_READY) ## a wheel with the way of a Check compiled to C, in build/compiled/dist (minutes, needs a C compiler)
	@ls $(COMPILED_AT)/dist/*.whl

$(COMPILED_READY): $(READY) setup.py $(shell find ext_authz -name '*.py')
	@rm -rf $(COMPILED_AT)
	@EXT_AUTHZ_COMPILE=1 $(BIN)/python setup.py -q bdist_wheel -d $(COMPILED_AT)/dist
	@$(BIN)/python -m zipfile -e $(COMPILED_AT)/dist/*.whl $(COMPILED_AT)/lib
	@touch $@

loadtest: $(READY) ## the gate against what else a user would pick, in four scenarios, 25 minutes (FULL=1: all, three times, in hours, goes on where it ended; ONLY=burst,light; AGAIN=product; BACKEND=triton|vllm: before a real one)
	@$(BIN)/python -m $(if $(BACKEND),loadtest.compare.real $(BACKEND),loadtest.compare) $(if $(FULL),--full) $(if $(ONLY),--only $(ONLY)) $(if $(AGAIN),--again $(AGAIN))

scenarios: $(READY) ## overload in virtual time, every scenario with each guard off in turn; writes docs/scenarios.md (minutes)
	@$(BIN)/python -m loadtest.scenarios --guards --write

render: $(READY) ## envoy/envoy.yaml again from envoy/config.yaml
	@$(BIN)/ext-authz render envoy --config envoy/config.yaml > envoy/envoy.yaml

lock: ## pin newer versions of everything (needs uv)
	@uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-annotate --extra fast --group dev pyproject.toml -o requirements.lock

clean: ## remove what was built and installed here
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache
