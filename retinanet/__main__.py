"""Commands on a trained detector. `evaluate` computes its mAP, `predict` detects
objects in pictures and videos, `export` writes a file that other programs
run. `convert` converts a .pth that you trust to .safetensors; `compile`
compiles the C++ kernels ahead of time; `mlperf` runs MLCommons' official
checkers and prints its reference points."""

import sys

from common.cli import run_command, run_command_group

COMMANDS = {
    "evaluate": ("retinanet.commands:add_evaluate", "mAP of a checkpoint"),
    "predict": ("retinanet.commands:add_predict", "boxes in pictures and videos"),
    "export": ("retinanet.commands:add_export", "ONNX or torch.export of a checkpoint"),
    "convert": ("retinanet.commands:add_convert", "weights of a .pth as safetensors, once"),
    "compile": ("retinanet.commands:add_compile", "the C++ kernels ahead of time"),
    "mlperf": (
        "retinanet.commands:add_mlperf",
        "MLPerf's checkers, reference points and submissions",
    ),
}


def main() -> int:
    """Run the command of the command line; return the exit code."""
    return run_command_group(
        prog="python -m retinanet", description=__doc__ or "", commands=COMMANDS
    )


def run() -> int:
    """Run the console script; return the exit code."""
    return run_command(main)


if __name__ == "__main__":
    sys.exit(run())
