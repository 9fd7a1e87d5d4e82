# make demo    train on synthetic images, evaluate, draw pictures: minutes on two cores
# make test-fast    tests of less than half a second each: a minute on two cores
# make test    all that proves the product, real mpirun included: 11 minutes on two cores
# make test-all    the whole suite, with IPEX, a browser and all commands of the docs; then make test-latest
# make test-latest    make test with the newest torch and torchvision, in .venv-latest
# make ipex    add the paper's engine, Intel's extension for PyTorch, to .venv
# make serving add what export to ONNX and videos need to .venv
# make simd    put Pillow-SIMD in Pillow's place: see requirements-simd.txt before; make pillow: back
# make fuzz    search for inputs that break a reader: FUZZ_SECONDS each (60), FUZZ_TARGETS (all)
# make torture kill a run of two ranks at random moments, 50 times, and compare its end: 20 minutes
# make browser look for the browser that a test of make test-all needs, and install one as root on Debian
# make lint    ruff, format, types
# make audit   ask PyPA's database for known holes of what is pinned, by pip-audit: see SECURITY.md
# Each makes .venv if it is missing. TORCH_INDEX=<url> takes CPU-only wheels of torch from there.

export TORCH_INDEX PYTHON

.PHONY: demo test-fast test test-all test-latest torture ipex serving fuzz simd pillow browser tools latest lint audit setup clean

# Without a compiler it takes longer; a line says so.
demo: setup
	@./setup.sh compiler || true
	.venv/bin/python train.py --config demo.yaml --overwrite

# First the tests that need one core, on a worker per core; then, whether or not those passed, the
# tests that need the whole machine. docs/tests.md explains the tiers.
# Bytecode is kept even where PYTHONDONTWRITEBYTECODE is set: tests start Python often.
test-fast test test-all test-latest: export PYTHONDONTWRITEBYTECODE =
test-fast test test-all: environment = .venv
test-latest: environment = .venv-latest
test-fast: tier = and not slow and not exhaustive
test test-latest: tier = and not exhaustive
side_by_side = --numprocesses=logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

define run_tests
$(environment)/bin/python -m pytest -m "not whole_machine $(tier)" --durations=20 $(side_by_side); \
one_core=$$?; \
if [ $$one_core -gt 1 ]; then exit $$one_core; fi; \
$(environment)/bin/python -m pytest -m "whole_machine $(tier)" --durations=20 && exit $$one_core
endef

test-fast: tools
	$(environment)/bin/python -m pytest -m "not whole_machine $(tier)" $(side_by_side)

test: tools serving
test-latest: tools latest
test test-latest:
	$(run_tests)

test-all: tools ipex serving browser
	$(run_tests)
	@$(MAKE) test-latest

tools:
	@./setup.sh tools

latest:
	@./setup.sh latest

torture: setup
	.venv/bin/python -m tests.torture

ipex:
	@./setup.sh ipex

serving:
	@./setup.sh serving

FUZZ_SECONDS = 60
FUZZ_TARGETS = annotations checkpoint config environment hosts image index log openimages topology

# Each ends at its first finding, whose bytes lie in runs/fuzz/found; the others go on.
fuzz:
	@./setup.sh fuzz
	@failed=; for target in $(FUZZ_TARGETS); do \
	    .venv/bin/python -m tests.fuzz $$target --seconds $(FUZZ_SECONDS) || failed="$$failed $$target"; \
	done; \
	if [ -n "$$failed" ]; then echo "fuzz: findings in$$failed, see runs/fuzz/found" >&2; exit 1; fi

simd:
	@./setup.sh simd

pillow:
	@./setup.sh pillow

browser:
	@./setup.sh browser

lint: setup tools
	.venv/bin/pre-commit run --all-files --show-diff-on-failure

# In an environment of its own: what it needs is not what the program needs.
audit: setup
	.venv/bin/python -m venv .venv-audit
	.venv-audit/bin/python -m pip install -q pip-audit==2.10.1
	@# The newest torch apart: one package of two versions is refused.
	audit=".venv-audit/bin/pip-audit --strict --no-deps --disable-pip"; \
	$$audit -r requirements-latest.txt; latest=$$?; \
	$$audit $(foreach file,$(filter-out requirements-latest.txt,$(wildcard requirements*.txt)),-r $(file)) && exit $$latest

setup:
	@./setup.sh

clean:
	rm -rf .venv .venv-latest .venv-audit .mypy_cache .ruff_cache .pytest_cache .hypothesis
