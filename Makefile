# Everything runs in .venv, which make creates if needed. Results of slow builds are kept in ~/.cache/dtj.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CLUSTER ?= local
# The number of jobs of `make bench-control`; several numbers mean several runs.
N ?= 100
# Rows of `make bench-control`.
ROWS ?= jobs big neighbours bytes crowd
# Minutes of each training of `make bench-checkpoints`.
MINUTES ?= 5
# The size of the state of `make bench-checkpoints`.
GIGABYTES ?= 3
PYTHON ?= python3
PY := .venv/bin/python
VENV := .venv/.made
DEMO_VENV := .venv/.made-for-demo
# Without PyTorch and TensorFlow, which are most of the time and of the gigabytes.
DEV_VENV := .venv/.made-for-dev
# With PYTHONDONTWRITEBYTECODE=1 each process would compile TensorFlow again.
export PYTHONDONTWRITEBYTECODE :=
ENVIRONMENT = @$(PYTHON) docker/environment.py
# Parallel tests: most of them wait for processes to start or for time to pass.
AT_ONCE ?= 3
JOB := manifests/examples/fashion-mnist-horovod.yaml

# Histories for each format of `make test-histories`.
HISTORIES ?= 1000
# Kills of `make test-chaos` without a cluster.
KILLS ?= 200
# Requests of `make test-serve-hostile`.
REQUESTS ?= 200000
# Simulated days of `make bench-week`.
DAYS ?= 7

.PHONY: help times test-whole demo demo-cluster test test-chaos test-ends test-nets test-tracking test-unit test-histories test-snapshots test-layouts test-store-faults test-serve-hostile test-chart test-trainer fuzz lint crd image-packages pod-schema chart bench bench-control bench-training bench-checkpoints bench-data bench-soak bench-first-step bench-cluster-toll images sbom docs pictures dashboard-picture page page-picture ui-pictures cluster cluster-down clean bench-week release bench-history test-tracking-cluster test-upgrade test-skew bench-rounds bench-recovery bench-spares bench-serve bench-output bench-code gpu-kit

help:  ## print these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV): pyproject.toml constraints.txt
	$(ENVIRONMENT) dev-frameworks
	@touch $@ $(DEMO_VENV) $(DEV_VENV)

$(DEMO_VENV): pyproject.toml constraints.txt
	$(ENVIRONMENT) local report torch export serving ui
	@touch $@

$(DEV_VENV): pyproject.toml constraints.txt
	$(ENVIRONMENT) dev
	@touch $@

demo: $(DEMO_VENV)  ## train Fashion-MNIST by Horovod on two ranks of this machine, without a cluster
	@$(PY) docker/wheels.py --install --framework torch
	@data=$$($(PY) -m tests.fashion_mnist) && set -x && .venv/bin/dtj run $(JOB) --data "$$data"
	.venv/bin/dtj report fashion-mnist --local
	.venv/bin/dtj artifacts ls fashion-mnist --local
	@echo "To see the curves: .venv/bin/dtj ui --local"
	@echo "To serve the model: .venv/bin/dtj serve fashion-mnist --local"
	@echo "Then open http://127.0.0.1:8080/ and draw a shirt. Ctrl-C ends the server."

demo-cluster: $(VENV)  ## the same job on a real local cluster, from kubectl apply to the model in S3
	$(PY) -m tests.cluster.demo --cluster $(CLUSTER)

# A fixed seed gives the same faults in every run, so that chance does not fail a change; `make test-chaos` varies it.
test: export DTJ_SEED ?= 20261121
test: $(VENV)  ## everything: lint, unit, chart, trainer and cluster tests; logs and times in build/test
	@$(PY) -m tests.stages --cluster $(CLUSTER); code=$$?; $(PYTHON) docker/environment.py --keep-bytecode; exit $$code

test-chaos: $(VENV)  ## 200 kills of agents and programs; every fault on a training of each strategy, as a table, and what else takes long; an hour
	DTJ_TEST_KILLS=$(KILLS) $(PY) -m pytest --capture=no tests/trainer/test_agent_kills.py
	DTJ_TEST_STARTS=200 $(PY) -m pytest tests/trainer/test_starts_in_one_process.py
	$(PY) -m tests.cluster.run --cluster $(CLUSTER) -- --real-trainings -m "chaos or matrix" tests/cluster

test-unit: $(DEV_VENV)  ## tests of the operator, the dtj command and the SDK: no root, no network
	$(PY) -m pytest --numprocesses=$(AT_ONCE) tests/unit tests/golden

test-histories: $(VENV)  ## 1,000 random histories of kills and numbers of ranks for each format of data; minutes
	DTJ_HISTORIES=$(HISTORIES) $(PY) -m pytest --numprocesses=2 --timeout=0 tests/trainer/test_histories.py

test-snapshots: $(VENV)  ## 20,000 random programs and 1,000 chains of attempts whose checkpoints are kept; 10 minutes
	DTJ_TEST_HISTORIES=20000 $(PY) -m pytest -k test_histories tests/trainer/test_picture.py
	SEEDS=500 DTJ_TEST_CHAINS=1000 $(PY) -m pytest --numprocesses=2 tests/trainer/test_pod_files.py tests/trainer/test_snapshot_chains.py

test-layouts: $(VENV)  ## six libraries, installed in the cache (200 MB), each killed and resumed, eight programs that know nothing of dtj, and five scripts by `dtj submit` on the cluster; RECORD=1 records their system calls anew
	$(PY) -m pytest -m layouts tests/layouts
	$(PY) -m tests.cluster.run --cluster $(CLUSTER) -- -m layouts tests/cluster
	$(if $(RECORD),$(PY) -c 'from tests.layouts.test_kills import python; print(python())' | xargs $(PY) -m tests.layouts.record)

test-store-faults: $(VENV)  ## each fault of the store in each phase of a pod, and the table of what happened; 10 minutes
	@mkdir -p build && rm -f build/store-faults.txt
	DTJ_FAULT_TABLE=$(CURDIR)/build/store-faults.txt $(PY) -m pytest -m "store_faults or not store_faults" --numprocesses=2 tests/trainer/test_store_faults.py; \
	    code=$$?; sort build/store-faults.txt; exit $$code

test-serve-hostile: $(VENV)  ## 200,000 hostile requests to `dtj serve`; minutes
	DTJ_HOSTILE=$(REQUESTS) $(PY) -m pytest --capture=no --timeout=0 tests/trainer/test_serving_hostile.py

test-chart: $(DEV_VENV)  ## tests of the Helm chart and of the manifests made from it; downloads Helm where there is none
	$(PY) -m pytest --numprocesses=$(AT_ONCE) tests/chart

test-trainer: $(VENV)  ## data, models, launch, artifacts and training with real Horovod ranks on this machine
	$(PY) docker/wheels.py --install
	@$(PY) -m tests.trainer.packages
	$(PY) -m pytest --numprocesses=$(AT_ONCE) tests/trainer

test-nets: $(VENV)  ## each network overfits 64 pictures, and trains on two ranks by Horovod, by DDP and divided; minutes
	$(PY) docker/wheels.py --install
	$(PY) -m pytest -m nets tests/trainer

test-whole: $(VENV)  ## the cells of matrices that `make test` leaves out: forms of scripts in all shapes; minutes
	$(PY) docker/wheels.py --install
	@$(PY) -m tests.trainer.packages
	$(PY) -m pytest -m whole tests/trainer

test-tracking: $(VENV)  ## a run over two restarts at a real MLflow server, which it installs in the cache (851 MB)
	$(PY) -m pytest -m trackers tests/trainer/test_tracking_server.py

test-tracking-cluster: $(VENV)  ## the same server beside a real cluster, and a training there that has a run at it
	$(PY) -m tests.cluster.run --cluster $(CLUSTER) -- --capture=no -m trackers tests/cluster

# FUZZ="--jobs 1000 --seed 7", or FUZZ="--seed 7 --only 123" for one job of a run.
fuzz: $(VENV)  ## 50,000 random jobs through webhook, job file, plan and reconciler; an hour
	@$(PY) -m tests.fuzz $(FUZZ)

# FROM=COMMIT, the version that is upgraded and rolled back to.
test-upgrade test-skew: FROM ?= 93ec95e8
test-upgrade: $(VENV)  ## jobs of three strategies in eleven states each, handed from one version to the other and back; seconds
	@$(PY) -m tests.upgrade $(FROM)

test-skew: $(VENV)  ## images and operators of two versions in one cluster, upgraded and rolled back under jobs; minutes
	DTJ_SKEW_FROM=$(FROM) $(PY) -m tests.cluster.run --cluster $(CLUSTER) -- --capture=no -m skew tests/cluster

test-ends: $(VENV)  ## jobs end in every way on a real cluster, its API server stops, and the history says what was said; minutes
	$(PY) -m tests.cluster.run --cluster $(CLUSTER) -- --capture=no -m ends tests/cluster

# All clones share the cache of mypy. mypy checks only files whose content differs from the cache. The whole check needs
# the frameworks' types: `make test` has them.
FRAMEWORKS = $(wildcard .venv/lib/*/site-packages/torch .venv/lib/*/site-packages/tensorflow)
WITHOUT_FRAMEWORKS := --ignore-missing-imports --allow-subclassing-any --allow-untyped-decorators \
	--no-warn-return-any --no-warn-unused-ignores
lint: export MYPY_CACHE_DIR ?= $(or $(DTJ_CACHE),$(HOME)/.cache/dtj)/mypy$(if $(FRAMEWORKS),,-without-frameworks)
lint: $(DEV_VENV)  ## ruff, mypy --strict, import rules
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(if $(FRAMEWORKS),,$(WITHOUT_FRAMEWORKS))
	.venv/bin/lint-imports

bench: bench-control bench-training  ## measure performance against the documented claims

bench-control: $(VENV)  ## the operator with N=100 jobs (or N="10 100 1000"), one big job, and a hostile tenant; ROWS="jobs big neighbours bytes crowd"
	@$(PY) -m tests.bench.control --rows $(ROWS) --jobs $(N)

bench-soak: $(VENV)  ## half an hour with 200 short jobs a minute: memory that the operator retains
	@$(PY) -m tests.bench.soak

bench-week: $(VENV)  ## uploads and cost of a pod in seven simulated days, with the real code; DAYS=1
	@$(PY) -m tests.bench.week --days $(DAYS)

bench-first-step: $(VENV)  ## time from kubectl apply to the first step on a real local cluster, by part; cluster-down removes the cluster
	@$(PY) -m tests.bench.first_step --cluster $(CLUSTER)

bench-cluster-toll: $(VENV)  ## dtj's cost to a training on a real local cluster; cluster-down removes the cluster
	$(PY) docker/wheels.py --install
	@$(PY) -m tests.bench.cluster_toll --cluster $(CLUSTER)

bench-training: $(VENV)  ## dtj's cost to a training, its checkpoints and its batches, compared with the same work without dtj
	$(PY) docker/wheels.py --install
	@$(PY) -m tests.bench.training

bench-checkpoints: $(VENV)  ## cost of saves beside a training (MINUTES=5); large checkpoints (GIGABYTES=3) throttled, killed, refused; folders
	@$(PY) -m tests.bench.checkpoints --gigabytes $(GIGABYTES) --saves-minutes $(MINUTES)

bench-data: $(VENV)  ## reading of data sets from S3, beside GETs and other libraries, which get an environment of their own
	@$(PY) -m tests.bench.data

bench-history: $(VENV)  ## the history of 10,000 ended jobs: newest jobs, filling of the cache, sorting, memory
	@$(PY) -m tests.bench.history

gpu-kit: $(VENV)  ## run all rows of the GPU check here, then collect what `python3 tests/gpu/run.py` needs on a bare machine with a GPU, in build/gpu-kit
	$(PY) -m pytest -m whole tests/trainer/test_gpu_check.py
	@$(PY) -m tests.gpu.kit

bench-code: $(VENV)  ## what code that a job brings adds to the same job from an image; memory of the largest archive, hostile ones
	@$(PY) -m tests.bench.code

bench-output: $(VENV)  ## the agent's CPU for 1 GB of output, with and without reading it for curves
	@$(PY) -m tests.bench.output_reading

bench-rounds: $(VENV)  ## what a restart in place costs the coordinator (5,000 agents beside 1,000) and the operator (beside new pods); minutes
	@$(PY) -m tests.bench.rounds

bench-recovery: $(VENV)  ## from the SIGKILL of a rank to its next step: new pods, restarts in place, two waiting interpreters without dtj; an hour
	@$(PY) -m tests.bench.recovery

bench-spares: $(VENV)  ## kill of a bare PyTorch script's ranks to their next step, by new processes and by warm spares; a minute
	@$(PY) -m tests.bench.spares

bench-serve: $(VENV)  ## `dtj serve` beside the bare session, a minimal server, LitServe and TorchServe; 1.2 GB of environments
	@$(PY) -m tests.bench.serve

images: $(VENV)  ## build the images of operator, trainer, TensorBoard and server; prints their archives
	@$(PY) docker/build.py --print-archives

sbom: $(VENV)  ## write the contents of the images, as CycloneDX, to build/sbom
	@mkdir -p build && $(PY) docker/build.py --print-archives > build/archives.txt
	$(PY) docker/sbom.py --folder build/sbom --archives build/archives.txt

times: $(VENV)  ## write tests/times.md, the budget of `make test`, from its last run
	@$(PY) -m tests.stage_times

crd: $(DEV_VENV)  ## write the CRD from the models, in manifests/crd and for the chart; docs/reference.md from the CRD
	.venv/bin/dtj crd > manifests/crd/distributedtrainingjobs.yaml
	cp manifests/crd/distributedtrainingjobs.yaml charts/dtj-operator/files/crd.yaml
	$(PY) -m tests.field_reference

image-packages: $(VENV)  ## write the packages of the images for `dtj submit`, after a change of pinned versions
	$(PY) docker/image_packages.py

pod-schema: $(VENV)  ## write Kubernetes' schema of pods for the operator, from the package kubernetes-validate
	$(PY) -m tests.pod_schema_file

chart: crd  ## write files generated from the chart: its README's table, manifests/{operator,rbac,overlays}, goldens; and the table of metrics
	$(PY) -m tests.chart.generated
	$(PY) -m tests.metrics_table

docs: $(VENV)  ## update kubectl's output in docs/using.md and status.md, on the cluster of KUBECONFIG
	$(PY) -m tests.cluster.write_docs

pictures: $(VENV)  ## take the screenshots of docs/cli.md, in a real terminal, on the cluster of KUBECONFIG
	$(PY) -m tests.cluster.terminal_pictures

dashboard-picture: $(VENV)  ## draw the dashboard of docs/monitoring.md from the operator's data in a real Prometheus
	$(PY) -m tests.dashboard_picture

page: $(VENV)  ## build the page of `dtj ui` of operator/page
	$(PY) -m tests.ui_bundle

page-picture: $(VENV)  ## take the picture of docs/serving.md: two models are trained, served, and asked in a real browser
	$(PY) docker/wheels.py --install --framework torch
	$(PY) -m tests.page_picture

ui-pictures: $(VENV)  ## take the pictures of docs/ui.md, in a real browser, on the cluster of KUBECONFIG
	$(PY) -m tests.cluster.ui_pictures

cluster: $(VENV)  ## start Kubernetes and S3 on this machine, and print the exports that tests need
	@$(PY) -m tests.cluster.up --cluster $(CLUSTER)

cluster-down: $(VENV)  ## stop and remove the cluster; only the cache of builds stays
	@$(PY) -m tests.cluster.down --cluster $(CLUSTER)

release:  ## set the version in every file: VERSION=0.2.0; RELEASE.md has the other steps
	@$(PYTHON) docker/release.py "$(VERSION)"

clean:  ## remove .venv and build results (the cache in ~/.cache/dtj stays)
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
