"""`retinanet profile capture`: run somebody's program, and log its primitives by torch operator.

The program and its environment are not changed. Each Python that it starts loads
`recorder/sitecustomize.py`, and its torch a small library, compiled from `recorder/recorder.cpp`
for that torch, which writes the log.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from common.cli import add_command, command_to_run, installed_command
from common.console import make_console, print_summary
from common.errors import BAD_INPUT, InputError
from common.files import or_refused
from common.native import NoCompilerError, find_compiler
from common.options import argument, option, overwrite_option
from common.walk import real_path
from profiling.causes import attributed_share
from profiling.onednn_log.log import OneDnnLog, read_with_progress

ABOUT = """\
Run a program that uses torch, and write oneDNN's log of every process of it, with the operator,
the module and the shapes of the inputs that each primitive belongs to, and the reasons why oneDNN
skipped faster implementations. The program needs no change, and its torch may be of another
environment; it may print, start processes and threads, fail, or be killed. A C++ compiler is
needed, for three seconds."""

EXAMPLES = """\
Steps are those of the program's first optimizer, counted from 1; before the first has ended, no
step is known. Without --steps everything is logged, a hundred kilobytes for a step of ResNet-50.

examples:
  retinanet profile capture -- python program.py --epochs 1
  retinanet profile capture --steps 10-12 --out rn50 -- torchrun --nproc-per-node 2 program.py
  retinanet profile stats captured"""

RECORDER = Path(__file__).resolve().parent / "recorder"
VERBOSE = "error,profile_exec,dispatch"
"""ONEDNN_VERBOSE of the program: executions, and reasons for skipped implementations."""
WINDOW = re.compile(r"([1-9]\d{0,11})(?:-([1-9]\d{0,11}))?")


def step_window(text: str) -> tuple[int, int]:
    """Return the first and the last step of `20-22` or `20`."""
    match = WINDOW.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise argparse.ArgumentTypeError(f"{text}: expected steps such as 20-22 or 20")
    return first, last


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """The options of `retinanet profile capture`."""

    out: Path = option(
        "folder of the logs, one of each process", default=Path("captured"), metavar="DIR"
    )
    steps: tuple[int, int] | None = option(
        "log these steps only, such as 10-12", default=None, parse=step_window, metavar="A-B"
    )
    overwrite: bool = overwrite_option("remove the logs of an earlier call from DIR")
    command: list[str] = argument(
        "the program and its arguments", metavar="COMMAND", nargs=argparse.REMAINDER
    )


def add_capture(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `capture` to the commands of a command line."""
    parser = add_command(
        commands, "capture", about=ABOUT, examples=EXAMPLES, options=CaptureOptions, run=capture
    )
    parser.usage = "%(prog)s [options] -- COMMAND …"


def capture(options: CaptureOptions) -> int:
    """Run the program, then print what was logged; return the program's exit status.

    Raises:
        InputError: The command or the folder is wrong, or a C++ compiler is missing.
    """
    command, out = command_to_run(options.command, example="python program.py"), options.out
    if shutil.which(command[0]) is None:
        fix = f"write python {command[0]}" if command[0].endswith(".py") else "give its path"
        raise InputError(f"{command[0]}: is not a command that can be run; {fix}")
    try:
        compiler = find_compiler()
    except NoCompilerError as error:
        raise InputError(f"capture: {error}") from error
    if old := own_logs(out):
        if not options.overwrite:
            raise InputError(f"{old[0]}: exists; give --overwrite or another --out")
        for log in old:
            log.unlink()
    with or_refused(out):
        out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="profilednn-") as libraries:
        settings = {
            "folder": str(real_path(out)),
            "libraries": libraries,
            "compiler": compiler,
            "steps": options.steps or (0, 0),
        }
        status = run_to_end(
            command,
            {
                **os.environ,
                "ONEDNN_VERBOSE": VERBOSE,
                "PROFILEDNN_CAPTURE": json.dumps(settings),
                "PYTHONPATH": os.pathsep.join(
                    [str(RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
                ),
            },
        )
    shown = show_logs(make_console(stderr=True), out, steps=options.steps)
    return status or shown


def own_logs(folder: Path) -> list[Path]:
    """Return the logs that the recorder has written to a folder, by process."""
    names = re.compile(r"\d+(-exec)*\.log")
    return sorted(file for file in folder.glob("*.log") if names.fullmatch(file.name))


def run_to_end(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command as a shell would; return its exit status, 128 + N after signal N."""
    process: subprocess.Popen[bytes] | None = None

    def hand_on(number: int, _: Any) -> None:
        # A terminal sends Ctrl-C to the program too, which ends as it likes.
        if process is not None and number != signal.SIGINT:
            process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        process = subprocess.Popen(command, env=environment)
        status = process.wait()
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be started: {error.strerror}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def show_logs(console: Console, out: Path, *, steps: tuple[int, int] | None) -> int:
    """Print what was logged, and the command that reads it; return 2 if nothing was."""
    logs = own_logs(out)
    log = read_with_progress(logs, console, needs_executions=False) if logs else OneDnnLog()
    if not log.executions:
        what = "executed a oneDNN primitive"
        if steps is not None:
            what += f" in steps {steps[0]}-{steps[1]} of an optimizer"
        reason = "no process that imported torch"
        console.print(f"capture: {reason} {what}: nothing was logged", soft_wrap=True)
        with suppress(OSError):  # not empty
            out.rmdir()
        return BAD_INPUT
    stats = [*installed_command("profiling"), "stats", str(out)]
    print_summary(
        console,
        headline="captured",
        rows={
            "logs": f"{out}, of {len(logs)} process{'es' if len(logs) > 1 else ''}",
            "operators": f"known for {attributed_share(log):.1%} of oneDNN's time",
        },
        next_commands=[shlex.join([*stats, "--out", str(out / "stats")])],
    )
    return 0
