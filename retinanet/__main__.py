"""Train RetinaNet-ResNeXt50 on CPUs, use the detector, and measure where the time goes."""

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import Any

from common.cli import (
    add_commands,
    load_function,
    run_command,
    run_parsed,
)
from common.machine import code_version, installed_versions
from common.program import DISTRIBUTION, PROGRAM

CHAPTERS = {
    "data": {
        "data": (
            "data.__main__:COMMANDS",
            "download, split, convert, verify, benchmark or create data sets",
        ),
    },
    "training": {
        "learn": (
            "retinanet.learn_command:add_learn",
            "from a folder of photos and labels to a detector and a page about it",
        ),
        "train": ("retinanet.config_file:add_train", "train a detector, or only check a run"),
        "launch": (
            "launch.__main__:COMMANDS",
            "plan, start and measure ranks, on one host or several",
        ),
        "config": (
            "retinanet.config_file:add_config",
            "describe the settings for editors (JSON schema)",
        ),
    },
    "the trained detector": {
        "evaluate": ("retinanet.commands:add_evaluate", "mAP of a checkpoint"),
        "report": ("retinanet.commands:add_report", "a page: what it finds, misses and confuses"),
        "predict": ("retinanet.commands:add_predict", "boxes in pictures and videos"),
        "export": ("retinanet.commands:add_export", "ONNX or torch.export of a checkpoint"),
        "convert": ("retinanet.commands:add_convert", "weights of a .pth as safetensors, once"),
    },
    "measurements": {
        "profile": (
            "profiling.__main__:COMMANDS",
            "ProfileDNN: where the time of a step goes; benchmarks, ablations",
        ),
        "mlperf": (
            "retinanet.mlperf.commands:add_mlperf",
            "MLPerf's checkers, reference points and submissions; published logs compared",
        ),
    },
    "installation": {
        "compile": ("retinanet.commands:add_compile", "the C++ kernels ahead of time"),
        "completion": (
            "retinanet.completion:add_completion",
            "commands and settings completed by bash, zsh or fish",
        ),
    },
}
"""Commands in the order of a user's work: names of functions, or of the commands of a package."""

COMMANDS = {name: entry for chapter in CHAPTERS.values() for name, entry in chapter.items()}

EXAMPLES = """\
examples:
  retinanet learn my-photos --hours 2                        # photos and labels of your own
  retinanet train                                            # synthetic data, minutes
  retinanet train --config coco.yaml data.root=/data/coco    # COCO 2017
  retinanet predict --checkpoint runs/demo photo.jpg

retinanet COMMAND --help describes a command, and has more examples."""


def main() -> int:
    """Run the command of the command line; return the exit code."""
    words = sys.argv[1:]
    if words[:1] == ["train"]:
        # A training parses its options itself: errors are printed by rank 0 only.
        code: int = load_function("train:main")(prog=f"{PROGRAM} train", words=words[1:])
        return code
    return run_parsed(make_parser(words))


def make_parser(words: Sequence[str] | None) -> argparse.ArgumentParser:
    """Return the parser; without `words` all commands have their options, see `add_commands`."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [-h] [--version] COMMAND …",
        description=f"{__doc__}\n\n{list_commands()}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action=ShowVersion,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="show versions and the commit, and exit",
    )
    # The description has the list, by chapter. shtab leaves out what --help does.
    shown = None if words is None else argparse.SUPPRESS
    add_commands(parser, COMMANDS, words, prog=PROGRAM, help=shown)
    return parser


def list_commands() -> str:
    """Return the commands with their summaries, by chapter."""
    width = max(map(len, COMMANDS))
    lines = []
    for title, commands in CHAPTERS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:{width}}  {summary}" for name, (_, summary) in commands.items()]
    return "\n".join(lines)


def version_text() -> str:
    """Return this program's version and commit, and the versions of torch and of Python."""
    code = code_version()
    changes = ", with changes" if code["is_modified"] else ""
    commit = f" (commit {code['commit']}{changes})" if code["commit"] else ""
    program = code["version"] or "of unknown version"
    versions = installed_versions(["torch", "pillow"])
    lines = [f"{DISTRIBUTION} {program}{commit}"]
    lines += [f"torch {versions.get('torch', 'is not installed')}"]
    lines += [f"Python {platform.python_version()}"]
    if simd := versions.get("pillow-simd"):
        lines += [f"Pillow-SIMD {simd} in Pillow's place"]
    return "\n".join(lines)


class ShowVersion(argparse.Action):
    """Print the versions, which are looked up only now, and end the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the versions, and exit."""
        print(version_text())
        parser.exit()


def run() -> int:
    """Run the console script; return the exit code."""
    return run_command(main)


if __name__ == "__main__":
    sys.exit(run())
