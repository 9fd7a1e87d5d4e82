# make demo    train on synthetic images, evaluate, draw pictures: minutes on two cores
# make test-fast    tests of less than half a second each: a minute on two cores
# make test    all that proves the product, real mpirun included: 13 minutes on two cores
# make test-all    the whole suite, with IPEX, other mpiruns, a browser and all commands of the docs
# make test-pythons    make test under every other Python of 3.11 to 3.14 that is here
# make ipex    make .venv-ipex, with Intel's extension and torch 2.8;  make intel-mpi open-mpi    their mpiruns, for tests
# make serving add what export to ONNX and videos need to .venv;  make openvino    what export to OpenVINO needs
# make fuzz    search for inputs that break a reader: FUZZ_SECONDS each (60), FUZZ_TARGETS (all)
# make torture kill a run of two ranks at random moments, 50 times, and compare its end: 20 minutes
# make lint    ruff, format, types;  make audit   known holes of what is pinned, by pip-audit: see SECURITY.md
# make update  move all pins to the newest versions once the tests pass and a step is as fast: half an hour
# make next    try the newest torch and torchvision, pre-releases too, likewise; no pin moves (TIER, SLOWER, BENCH, NEXT)
# make release lint, test and audit (CHECKS), build and try this version;  make image   by DOCKER (docker): see docs/docker.md
# Each makes .venv if it is missing, with PYTHON=<path> or the newest. TORCH_INDEX=<url> has CPU-only wheels of torch.

export TORCH_INDEX PYTHON PINS CHECKS
environment = .venv
PINS = .
python = $(environment)/bin/python
FUZZ_SECONDS = 60
FUZZ_TARGETS = annotations checkpoint config environment hosts image index log mlperf openimages topology voc weights yolo

.PHONY: demo test-fast test test-all ipex-tests test-pythons ipex serving openvino fuzz torture lint audit image release intel-mpi open-mpi browser update next tools setup clean

# Without a compiler it takes longer; a line says so.
demo: setup
	@./setup.sh compiler || true
	$(environment)/bin/retinanet train --config demo.yaml --overwrite

# First the tests that need one core, on a worker per core; then, whether or not those passed, the
# tests that need the whole machine. docs/tests.md explains the tiers.
# Bytecode is kept even where PYTHONDONTWRITEBYTECODE is set: tests start Python often.
test-fast test test-all: export PYTHONDONTWRITEBYTECODE =
test-fast: tier = and not ipex and not slow and not exhaustive
test: tier = and not ipex and not exhaustive
test-all: tier = and not ipex
one_core = $(python) -m pytest -m "not whole_machine $(tier)" --numprocesses=logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
whole_machine = $(python) -m pytest -m "whole_machine $(tier)" --durations=20 $$(grep -rl whole_machine tests --include='test_*.py')

test-fast: tools ; $(one_core)
test test-all: tools
	$(one_core) --durations=20; status=$$?; [ $$status -le 1 ] && $(whole_machine) && exit $$status

test-all: ipex-tests openvino intel-mpi open-mpi browser
ipex-tests: ipex ; .venv-ipex/bin/python -m pytest -m ipex $$(grep -rl mark.ipex tests)  # others import what is not there

test-pythons: tools
	@for other in $$(./setup.sh pythons); do \
	    version=$$($$other -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    $(python) -V | grep -q " $$version\." || $(MAKE) test PYTHON=$$other environment=.venv-$$version || exit; \
	done

torture: tools ; $(python) -m tests.torture
lint: tools ; $(python) -m pre_commit run --all-files --show-diff-on-failure
release: tools ; @.ci/release
image: ; $(or $(DOCKER),docker) build -t retinanet-cpu --build-arg COMMIT=$$(git rev-parse HEAD) --build-arg VERSION=$$(sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml) .

# Each ends at its first finding, whose bytes lie in runs/fuzz/found; the others go on.
fuzz:
	@SETUP_VENV=$(environment) ./setup.sh fuzz
	@for target in $(FUZZ_TARGETS); do $(python) -m tests.fuzz $$target --seconds $(FUZZ_SECONDS) || failed=1; done; \
	[ -z "$$failed" ] || { echo "fuzz: findings in runs/fuzz/found" >&2; exit 1; }

audit: setup
	for file in requirements/*.txt; do ./setup.sh uv tool run pip-audit@2.10.1 --strict --no-deps --disable-pip --requirement $$file || failed=1; done; [ -z "$$failed" ]

# TIER: target that runs the suite. SLOWER: how many times as long a step may take. BENCH: options of `bench step`.
# NEXT: what `make next` installs, such as NEXT="torch==2.14.* torchvision"; TORCH_INDEX may be one of nightly builds.
TIER = test
SLOWER = 1.1
BENCH = --contestants torch,torch-onednn,torchvision-tuned
NEXT = torch torchvision
update next: tools ; @$(python) -m tests.newer $@ --packages "$(NEXT)" --tier $(TIER) --slower $(SLOWER) --bench="$(BENCH)"

tools: ; @./setup.sh tools && SETUP_VENV=$(environment) ./setup.sh dev

setup ipex serving openvino intel-mpi open-mpi browser: ; @SETUP_VENV=$(environment) ./setup.sh $(filter-out setup,$@)

clean: ; rm -rf .venv .venv-* .uv dist .pins .pins-next .mypy_cache .ruff_cache .pytest_cache .hypothesis
