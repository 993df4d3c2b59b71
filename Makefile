# Everything runs in .venv, which is made when it isn't there; slow things are built once and kept in ~/.cache/dtj.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CLUSTER ?= local
PYTHON ?= python3
PY := .venv/bin/python
VENV := .venv/.made
DEMO_VENV := .venv/.made-for-demo
PIP_INSTALL = $(PYTHON) -m venv .venv && $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
JOB := manifests/examples/fashion-mnist-horovod.yaml

.PHONY: help demo demo-cluster test test-chaos test-unit test-trainer lint crd images docs pictures cluster cluster-down clean

help:  ## print these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV): pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[dev,torch,tensorflow]'
	@touch $@ $(DEMO_VENV)

$(DEMO_VENV): pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[local,report,torch]'
	@touch $@

demo: $(DEMO_VENV)  ## train Fashion-MNIST by Horovod on two ranks of this machine, without a cluster
	@$(PY) docker/wheels.py --install --framework torch
	@data=$$($(PY) -m tests.fashion_mnist) && set -x && .venv/bin/dtj run $(JOB) --data "$$data"
	.venv/bin/dtj report fashion-mnist --local
	.venv/bin/dtj artifacts ls fashion-mnist --local

demo-cluster: $(VENV)  ## the same job on a real local cluster, from kubectl apply to the model in S3
	$(PY) -m tests.cluster.demo --cluster $(CLUSTER)

test: lint test-unit test-trainer  ## everything: lint, unit, trainer and cluster tests
	$(PY) -m tests.cluster.run --cluster $(CLUSTER)

test-chaos: $(VENV)  ## the tests of lost nodes that take too long for `make test`
	$(PY) -m tests.cluster.run --cluster $(CLUSTER) -- -m chaos tests/cluster

test-unit: $(VENV)  ## tests of the operator, the dtj command and the SDK: no root, no network
	$(PY) -m pytest tests/unit tests/golden

test-trainer: $(VENV)  ## data, models, launch, artifacts and training with real Horovod ranks on this machine
	$(PY) docker/wheels.py --install
	@$(PY) -m tests.trainer.packages
	$(PY) -m pytest tests/trainer

lint: $(VENV)  ## ruff, mypy --strict, import rules
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

images: $(VENV)  ## build the operator's and the trainer's images; prints their archives
	@$(PY) docker/build.py --print-archives

crd: $(VENV)  ## write manifests/crd from the models
	.venv/bin/dtj crd > manifests/crd/distributedtrainingjobs.yaml

docs: $(VENV)  ## fill docs/using.md with what kubectl prints on the cluster of KUBECONFIG
	$(PY) -m tests.cluster.write_docs

pictures: $(VENV)  ## take the pictures of docs/cli.md, in a real terminal, on the cluster of KUBECONFIG
	$(PY) -m tests.cluster.terminal_pictures

cluster: $(VENV)  ## bring up Kubernetes and S3 on this machine, print the exports that tests need
	@$(PY) -m tests.cluster.up --cluster $(CLUSTER)

cluster-down: $(VENV)  ## take them away; nothing of them stays but the builds in the cache
	@$(PY) -m tests.cluster.down --cluster $(CLUSTER)

clean:  ## remove .venv and what was built here (the cache in ~/.cache/dtj stays)
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
