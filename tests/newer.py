"""Judge newer versions before the pins move to them: `make next` and `make update`.

next      the newest torch and torchvision, pre-releases too, beside all else as pinned
update    the newest versions of everything; the pins move if no check fails

Each resolves into pins of its own, installs them in an environment of its own, and compares that
with this one: the suite, results that foreign memory must not change, a training step of both in
turn, and whether ProfileDNN understands oneDNN's log of a step. A check that fails does not keep
the others from running. One table ends it; the exit status is 1 if a check failed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.charts import Table, text_column
from common.cli import run_command
from common.console import make_console, significant
from common.errors import FINISHED, InputError
from profiling.bench.interpreters import find_interpreter
from profiling.onednn_log.log import OneDnnLog, read_logs
from profiling.replay.benchdnn_fields import Dialect
from profiling.replay.benchdnn_problems import express

MOVED = ("torch", "torchvision")
FOREIGN_MEMORY = "tests/retinanet/engine/test_foreign_memory.py"
TRAINING = (
    *("--config", "demo.yaml", "data.scenes.train=4", "data.scenes.validation=1"),
    *("data.image_size=128", "training.batch_size=2", "training.max_steps=2"),
    *("training.target_map=null", "evaluation.pictures=0", "run.root=runs"),
    *("engine.convolutions=onednn", "profile.onednn.steps=2", "--overwrite"),
)
OK, FAILED = "ok", "failed"


@dataclass(frozen=True)
class Row:
    """What a check found in both environments; empty where it does not apply."""

    check: str
    old: str
    new: str
    verdict: str = OK

    @property
    def passes(self) -> bool:
        """Whether it lets the pins move."""
        return self.verdict.startswith(OK)


@dataclass(frozen=True)
class Options:
    """The command line."""

    goal: str
    packages: str
    tier: str
    slower: float
    bench: str

    @property
    def pins(self) -> Path:
        """The folder of the new pins."""
        return Path(".pins-next" if self.goal == "next" else ".pins")

    @property
    def environment(self) -> Path:
        """The folder of the new packages."""
        return Path(f".venv-{self.goal}")

    @property
    def variables(self) -> dict[str, str]:
        """What tells setup.sh of both; the Python is that of this environment."""
        own = {"SETUP_VENV": str(self.environment), "PINS": str(self.pins)}
        return {**os.environ, **own, "PYTHON": sys.executable}


def resolve(options: Options) -> None:
    """Write the new pins.

    Raises:
        InputError: There is no solution, or no index.
    """
    pins = options.pins
    shutil.rmtree(pins, ignore_errors=True)
    (pins / "requirements").mkdir(parents=True)
    # One resolution for all Pythons, whose markers tell where they must differ.
    moving = ["--universal", "--python-version", "3.11", "--upgrade"]
    if options.goal == "next":
        # What stands in the file to be written is kept, unless it is to be upgraded. Only for this
        # Python: a version that leaves the oldest one out would be passed over in silence.
        shutil.copytree("requirements", pins / "requirements", dirs_exist_ok=True)
        shutil.copy("requirements.txt", pins)
        wanted = pins / "next.in"
        wanted.write_text("\n".join([*options.packages.split(), ""]))
        moving = ["--python", sys.executable, "--constraints", str(wanted), "--prerelease=allow"]
        moving += [f"--upgrade-package={name}" for name in MOVED]
        if index := os.environ.get("TORCH_INDEX"):
            moving += ["--index", index, "--index-strategy", "unsafe-best-match"]
    base, served = (
        ("pyproject.toml", "--constraints", str(pins / file))
        for file in ("requirements.txt", "requirements/serving.txt")
    )
    sources: dict[str, Sequence[str]] = {
        "requirements.txt": ["pyproject.toml"],
        "requirements/serving.txt": [*base, "--extra", "serving"],
        "requirements/openvino.txt": [*base, "--extra", "openvino"],
        "requirements/dev.txt": [*served, "--extra", "serving", "--group", "dev"],
    }
    if options.goal == "update":
        sources["requirements/fuzz.txt"] = [*base, "--group", "fuzz"]
        sources["requirements/ipex.txt"] = ["pyproject.toml", "--group", "ipex", "--group", "dev"]
        for family in ("intel-mpi", "open-mpi"):
            sources[f"requirements/{family}.txt"] = ["--group", family]
    for file, words in sources.items():
        command = ["./setup.sh", "uv", "pip", "compile", "--quiet", *moving, *words]
        command += ["--custom-compile-command", "make update", "--output-file", str(pins / file)]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise InputError(f"{pins / file} cannot be resolved, see above")


def run_and_show(command: Sequence[str]) -> tuple[int, list[str]]:
    """Run a command, print its output as it comes, and return status and lines."""
    print(f"+ {' '.join(command)}", flush=True)
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return process.returncode, lines


def run_tests(name: str, command: Sequence[str]) -> Iterator[Row]:
    """Yield the row of a command that runs pytest, with the ends of its lines of numbers."""
    status, lines = run_and_show(command)
    numbers = (
        re.fullmatch(r"[= ]*(\d+ .*(?:passed|failed|error).* in [\d.]+s).*", x) for x in lines
    )
    shown = "; ".join(re.sub(r", \d+ warnings?", "", match[1]) for match in numbers if match)
    yield Row(name, "", shown or "no test ran", OK if status == 0 and shown else FAILED)


def run_suite(options: Options) -> Iterator[Row]:
    """Yield the row of the suite."""
    places = (f"environment={options.environment}", f"PINS={options.pins}")
    return run_tests(f"make {options.tier}", ["make", options.tier, *places])


def run_foreign_memory(options: Options) -> Iterator[Row]:
    """Yield the row of results that foreign memory must not change; it is not in every tier."""
    python = str(options.environment / "bin" / "python")
    return run_tests("NaN beside operands", [python, "-m", "pytest", "-q", FOREIGN_MEMORY])


def run_bench(options: Options) -> Iterator[Row]:
    """Yield a row for each contestant of a training step, old and new in turn."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "step.json")
        program = str(options.environment / "bin" / "retinanet")
        command = [program, "profile", "bench", "step", *options.bench.split()]
        run_and_show([*command, "--against", sys.executable, "--json", str(file)])
        # Also of an interrupted benchmark what it has measured.
        yield from judge_steps(json.loads(file.read_text()), slower=options.slower)


def judge_steps(content: Mapping[str, Any], *, slower: float) -> Iterator[Row]:
    """Yield rows of what `bench step --against --json` has written.

    A step that takes `slower` times as long as the old one, or longer, fails.
    """
    for workload in content.get("workloads", [content]):
        steps, sizes = workload["contestants"], workload["workload"]
        for name in steps:
            other = next((other for other in steps if other.startswith(f"{name} (")), None)
            if other is not None:
                # How many times as fast the old one is: the median of the rounds.
                ratio = workload["ratios"][f"{other}/{name}"]
                title = f"step of {name}, {sizes['images']} × {sizes['image_size']}"
                old, new = (f"{significant(steps[x]['median_s'], 3)} s" for x in (other, name))
                verdict = f"{ratio:.2f}× the time"
                yield Row(
                    title, old, new, f"slower: {verdict}" if ratio > slower else f"{OK}: {verdict}"
                )


def run_log(options: Options) -> Iterator[Row]:
    """Yield the row of oneDNN's log of a step, from both environments."""
    logs = []
    for side, python in (
        ("old", Path(sys.executable)),
        ("new", options.environment / "bin/python"),
    ):
        name = f"{options.goal}-{side}"
        command = [str(python), "train.py", *TRAINING, f"run.name={name}"]
        status, lines = run_and_show(command)
        if status:
            raise InputError(f"{side}: {lines[-1] if lines else 'no output'}")
        logs.append(read_logs([Path("runs", name, "onednn", "rank0.log")]))
    row, unknown = judge_logs(*logs)
    for line in unknown:
        print(line)
    yield row


def judge_logs(old: OneDnnLog, new: OneDnnLog) -> tuple[Row, list[str]]:
    """Return the row of two logs, and a line for each thing in the new one that is not known.

    Known are lines, a header's facts, and fields of problems that benchdnn's options express, or
    that they did not express in the old log either.
    """
    unknown = [f"line {x.line}: {x.why}: {x.text}" for x in new.not_understood]
    for fact in ("versions", "runtimes", "threads", "instruction_sets"):
        if getattr(old, fact) and not getattr(new, fact):
            unknown.append(f"the header has no {fact} any more")
    reasons = [express(log.calls(), Dialect(3, "log"))[1] for log in (old, new)]
    # Of many problems the costliest is the example.
    examples = {why: problem for problem, why in reversed(reasons[1].items())}
    for why in examples.keys() - set(reasons[0].values()):
        unknown.append(f"{examples[why].name} {examples[why].shape}: {why}")
    one, other = (
        f"oneDNN {' '.join(log.versions)}, {log.onednn_lines} lines" for log in (old, new)
    )
    verdict = f"{FAILED}: {len(unknown)} unknown, see above" if unknown else OK
    return Row("oneDNN's log of a step", one, other, verdict), unknown


def find_next_python(options: Options) -> Iterator[Row]:
    """Yield what the first Python that pyproject.toml leaves out lacks; it fails nothing."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    known, version = re.findall(r"[\d.]+", project["requires-python"])
    names = [re.split(r"[<>=]", dependency)[0] for dependency in project["dependencies"]]
    ask = ["./setup.sh", "uv", "pip", "install", "--dry-run", "--quiet", "--no-deps"]
    ask += ["--only-binary=:all:", f"--python-version={version}"]
    with tempfile.TemporaryDirectory() as folder:  # a lock stays in it, also after a dry run
        missing = [
            name
            for name in names
            if subprocess.run(
                [*ask, f"--target={folder}", name], capture_output=True, check=False
            ).returncode
        ]
    lacks = f"no wheel yet of {', '.join(missing)}" if missing else "all dependencies have wheels"
    yield Row(f"Python {version}", f"from {known} on", lacks)


Check = Callable[[Options], Iterator[Row]]
CHECKS: dict[str, Check] = {
    "suite": run_suite,
    "NaN beside operands": run_foreign_memory,
    "training step": run_bench,
    "oneDNN's log": run_log,
    "next Python": find_next_python,
}


def judge(options: Options, checks: Mapping[str, Check] = CHECKS) -> bool:
    """Run all checks, print one table; return whether none failed."""
    rows: list[Row] = []
    for name, check in checks.items():
        try:
            rows += check(options)
        except (InputError, OSError, ValueError, LookupError) as error:
            rows.append(Row(name, "", str(error).splitlines()[0], FAILED))
    columns = [text_column(name) for name in ("check", "old", "new", "verdict")]
    table = Table("", columns, [[row.check, row.old, row.new, row.verdict] for row in rows])
    make_console().print(table.for_console())
    return all(row.passes for row in rows)


def versions(python: Path) -> str:
    """Return the versions of what moves in an environment: `torch 2.15.0, torchvision 0.29.2`."""
    found = find_interpreter(str(python), prefix="packages", fix="see above", loads=False)
    return ", ".join(f"{name} {found.versions[name]}" for name in MOVED)


def run_newer(options: Options) -> int:
    """Resolve, install, judge; move the pins if they are to; return the exit code."""
    resolve(options)
    if subprocess.run(["./setup.sh", "dev"], env=options.variables, check=False).returncode:
        raise InputError(f"{options.environment} cannot be installed, see above")
    old, new = map(versions, (Path(sys.executable), options.environment / "bin/python"))
    print(f"old: {old}\nnew: {new}{', the same' if old == new else ''}", flush=True)
    if not judge(options):
        print(f"a check failed; the new pins are in {options.pins}, no pin has moved")
        return 1
    if options.goal == "update":
        shutil.copytree(options.pins, ".", dirs_exist_ok=True)
        shutil.rmtree(options.pins)
        subprocess.run(
            ["git", "diff", "--stat", "--", "requirements.txt", "requirements"], check=True
        )
    return FINISHED


def main() -> int:
    """Parse the command line, which `make` writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("goal", choices=("next", "update"))
    parser.add_argument("--packages", default=" ".join(MOVED), help="what `next` installs")
    parser.add_argument("--tier", default="test", help="target of make that runs the suite")
    parser.add_argument(
        "--slower", type=float, default=1.1, help="how many times as long a step may take"
    )
    parser.add_argument("--bench", default="", help="options of `bench step`")
    return run_newer(Options(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(run_command(main))
