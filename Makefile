# make demo    train on drawn scenes, evaluate, draw pictures: minutes on two cores
# make test    the test suite
# make test-latest    the test suite with the newest torch and torchvision, in .venv-latest; no IPEX
# make ipex    add the paper's engine, Intel's extension for PyTorch, to .venv
# make serving add what export to ONNX and videos need to .venv
# make simd    put Pillow-SIMD in Pillow's place: see requirements-simd.txt before; make pillow: back
# make fuzz    search for inputs that break a reader: FUZZ_SECONDS each (60), FUZZ_TARGETS (all)
# make torture kill a run of two ranks at random moments, 50 times, and compare its end: 20 minutes
# make browser look for the browser that a test of make test needs, and install one as root on Debian
# make lint    ruff, format, types
# make audit   ask PyPA's database for known holes of what is pinned, by pip-audit: see SECURITY.md
# Each makes .venv if it is missing. TORCH_INDEX=<url> takes CPU-only wheels of torch from there.

export TORCH_INDEX PYTHON

.PHONY: demo test test-latest torture ipex serving fuzz simd pillow browser tools latest lint audit setup clean

# Without a compiler it takes longer; a line says so.
demo: setup
	@./setup.sh compiler || true
	.venv/bin/python train.py --config demo.yaml --overwrite

# First the tests that need one core, a worker for each core; then, whether or not those passed, the
# tests that need them all. With IPEX, the packages of serving and a browser, so that their tests run and
# are not skipped; IPEX does not work with the newest torch.
# Bytecode is kept even where PYTHONDONTWRITEBYTECODE is set: tests start Python often.
test test-latest: export PYTHONDONTWRITEBYTECODE =
test: environment = .venv
test: tools ipex serving browser
test-latest: environment = .venv-latest
test-latest: tools latest browser
test test-latest:
	$(environment)/bin/python -m pytest -m "not whole_machine" --numprocesses=logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder; \
	one_core=$$?; \
	if [ $$one_core -gt 1 ]; then exit $$one_core; fi; \
	$(environment)/bin/python -m pytest -m whole_machine && exit $$one_core

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
