# make demo    train on drawn scenes, evaluate, draw pictures: minutes on two cores
# make test    the test suite
# make lint    ruff, format, types
# Each makes .venv if it is missing. TORCH_INDEX=<url> takes CPU-only wheels of torch from there.

export TORCH_INDEX PYTHON

.PHONY: demo test lint setup clean

demo: setup
	.venv/bin/python train.py --config demo.yaml --overwrite

test: setup
	.venv/bin/python -m pytest

lint: setup
	.venv/bin/pre-commit run --all-files --show-diff-on-failure

setup:
	@./setup.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
