"""Commands on a trained detector. `evaluate` prints its mAP, `predict` finds its
classes in pictures and videos, `export` makes a file of it that other
programs run. `convert` makes a .pth of somebody whom you trust into a file
that training reads; `compile` compiles the C++ ahead of time; `mlperf` runs
MLCommons' official checkers, and tells what its reference runs took."""

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
        "check a run by MLPerf's rules, its reference points, a submission's folder",
    ),
}


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    return run_command_group(
        prog="python -m retinanet", description=__doc__ or "", commands=COMMANDS
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
