# make demo    train on drawn scenes, evaluate, draw pictures: minutes on two cores
# make test    the test suite
# make ipex    add the paper's engine, Intel's extension for PyTorch, to .venv
# make simd    put Pillow-SIMD in Pillow's place: see requirements-simd.txt before; make pillow: back
# make browser look for the browser that a test of make test needs, and install one as root on Debian
# make lint    ruff, format, types
# Each makes .venv if it is missing. TORCH_INDEX=<url> takes CPU-only wheels of torch from there.

export TORCH_INDEX PYTHON

.PHONY: demo test ipex simd pillow browser lint setup clean

demo: setup
	.venv/bin/python train.py --config demo.yaml --overwrite

# With IPEX and a browser, so that their tests run and are not skipped.
test: ipex browser
	.venv/bin/python -m pytest

ipex:
	@./setup.sh ipex

simd:
	@./setup.sh simd

pillow:
	@./setup.sh pillow

browser:
	@./setup.sh browser

lint: setup
	.venv/bin/pre-commit run --all-files --show-diff-on-failure

setup:
	@./setup.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
