"""`profile capture`: somebody's program, whose primitives are logged by torch operator."""

import subprocess
import sys
from pathlib import Path

import pytest

from profiling.__main__ import main
from profiling.causes import attributed_share
from profiling.onednn_log.log import OneDnnLog, log_files, read_logs
from profiling.onednn_log.parse import Operator
from profiling.onednn_log.work import Problem, listed_sizes, named_sizes
from tests.support.commands import REPOSITORY, RunHere, run_program

pytestmark = pytest.mark.slow

PROGRAM = """
import ctypes, os, signal, subprocess, sys, threading
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self, channels, kernel):
        super().__init__()
        self.first = nn.Conv2d(3, channels, kernel)
        self.second = nn.Conv2d(channels, channels, 1)
        self.last = nn.Linear(channels, 64)

    def forward(self, images):
        maps = checkpoint(self.second, self.first(images).relu(), use_reentrant=False)
        return self.last(maps.mean((2, 3)))

def train(net, size):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        net(torch.randn(2, 3, size, size, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()

class Wide(Net): pass

threads = [threading.Thread(target=train, args=(Net(16, 3).bfloat16(), 40)),
           threading.Thread(target=train, args=(Wide(48, 5).bfloat16(), 30))]
print("a line of Python")
for thread in threads: thread.start()
for thread in threads: thread.join()
c = ctypes.CDLL(None)
c.puts(b"a line of C"); c.fflush(None)
subprocess.run(["echo", "a line of a child"])
os.write(1, b"a line of the system\\n")
if os.fork() == 0:
    nn.Conv2d(5, 8, 3)(torch.randn(3, 5, 16, 16))
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "import torch; torch.ones(2).sum()"])
os.kill(os.getpid(), signal.SIGKILL)
"""
OUTPUT = "a line of Python\na line of C\na line of a child\na line of the system\n"


def run_captured(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this text; the logs are in `folder / "logs"`."""
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    command = ("-m", "profiling", "capture", "--out", str(folder / "logs"), *options)
    return run_program(
        *(sys.executable, *command, "--", sys.executable, str(script)),
        timeout=120,
        OMP_NUM_THREADS="1",
        PYTHONPATH=f"{REPOSITORY}:{folder}",
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """The folder, output and status of a captured program that is killed at its end."""
    folder = tmp_path_factory.mktemp("killed")
    done = run_captured(folder, PROGRAM)
    return folder / "logs", done.stdout, done.returncode


@pytest.fixture(scope="module")
def log(killed: tuple[Path, str, int]) -> OneDnnLog:
    return read_logs(log_files(killed[0]))


def tensors(operator: Operator) -> list[tuple[int, ...]]:
    """Return the shapes of the operator's inputs; the convolution's own come first."""
    return [tuple(map(int, shape.split("x"))) for shape in operator.shapes.split()]


def test_each_primitive_has_the_shapes_of_its_operator(log: OneDnnLog) -> None:
    # Two threads compute networks of other sizes at the same time: a line of one that is
    # attributed to an operator of the other would have other shapes.
    seen = set()
    for operator, problems in log.operators.items():
        for problem in problems:
            if problem.kind == "convolution":
                seen.add((operator.name, problem.direction))
                check_convolution(operator, problem)
            elif problem.kind == "matmul":
                seen.add((operator.name, problem.direction))
                # A transposed or a padded operand keeps its number of elements.
                sizes = [sorted(shape) for shape in listed_sizes(problem.shape)]
                assert all(size in map(sorted, tensors(operator)) for size in sizes)
    assert {
        ("aten::mkldnn_convolution", "forward_training"),
        ("aten::convolution_backward", "backward_data"),
        ("aten::convolution_backward", "backward_weights"),
    } <= seen


def check_convolution(operator: Operator, problem: Problem) -> None:
    sizes = named_sizes(problem.shape)
    inputs = (sizes["mb"], sizes["ic"], sizes["ih"], sizes["iw"])
    weights = (sizes["oc"], sizes["ic"], sizes["kh"], sizes["kw"])
    outputs = (sizes["mb"], sizes["oc"], sizes["oh"], sizes["ow"])
    is_backward = operator.name == "aten::convolution_backward"
    expected = [outputs, inputs, weights] if is_backward else [inputs, weights]
    assert tensors(operator)[: len(expected)] == expected


def test_modules_are_those_of_the_thread_and_of_the_forward_pass(log: OneDnnLog) -> None:
    # The second convolution is computed again in the backward pass, where no module calls it.
    expected = {
        (f"{net}.{layer}", is_backward)
        for net in ("Net", "Wide")
        for layer in ("first", "second")
        for is_backward in (False, True)
    }
    named = {
        (operator.module, operator.caller == "ConvolutionBackward0")
        for operator, problems in log.operators.items()
        for problem in problems
        if problem.kind == "convolution"
    }
    assert named == expected | {("Conv2d", False)}  # that of the forked process
    channels = {"Net.first": 16, "Wide.first": 48}
    for operator, problems in log.operators.items():
        for problem in problems:
            if operator.module in channels and problem.kind == "convolution":
                assert named_sizes(problem.shape)["oc"] == channels[operator.module]


def test_every_line_is_attributed(log: OneDnnLog) -> None:
    assert attributed_share(log) == pytest.approx(1)
    executions = sum(calls.count for calls in log.calls().values())
    assert executions == sum(
        calls.count for problems in log.operators.values() for calls in problems.values()
    )
    assert log.not_understood_count == 0
    assert log.skipped


def test_program_prints_and_ends_as_without(killed: tuple[Path, str, int]) -> None:
    folder, output, status = killed
    assert output == OUTPUT
    assert status == 128 + 9
    # That of the forked process too; the last child executed no primitive.
    assert len(list(folder.iterdir())) == 2


STEPS = """
import sitecustomize, torch
print(sitecustomize.WHOSE)
net = torch.nn.Conv2d(8, 8, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(6):
    net(torch.randn(2, 8, 16, 16)).sum().backward()
    optimizer.step()
raise ValueError("the program's own error")
"""


def test_only_the_chosen_steps_are_logged(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("WHOSE = 'the program'\n", encoding="utf-8")
    done = run_captured(tmp_path, STEPS, "--steps", "3-4")
    assert (done.returncode, done.stdout) == (1, "the program\n")
    assert "the program's own error" in done.stderr
    assert "known for 100.0% of oneDNN's time" in done.stderr
    log = read_logs(log_files(tmp_path / "logs"))
    assert log.steps == [3, 4]
    assert all(where.step for where in log.executions)
    assert {where.step for where in log.phase_ms} == {3, 4}
    # Implementations are chosen in the first step.
    assert any("convolution" in work for work in log.skipped)


def test_program_without_primitives(tmp_path: Path) -> None:
    done = run_captured(tmp_path, "print(1)")
    assert (done.returncode, done.stdout) == (2, "1\n")
    expected = "no process that imported torch executed a oneDNN primitive: nothing was logged"
    assert expected in done.stderr
    assert not (tmp_path / "logs").exists()


def test_mistakes_are_one_line(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error_of(*arguments: str) -> str:
        done = run_here(main, "capture", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    (tmp_path / "captured").mkdir()
    (tmp_path / "captured" / "12.log").write_text("mine", encoding="utf-8")
    assert error_of("--", "a.py").startswith("error: a.py: is not a command that can be run; write")
    line = error_of("--out", __file__, "--", "true").strip()
    assert line == f"error: {__file__}: cannot be written: File exists"
    assert "expected steps such as" in error_of("--steps", "4-2", "--", "true")
    assert "exists; give --overwrite" in error_of("--", "true")
    monkeypatch.setenv("CXX", "none")
    assert "no C++ compiler" in error_of("--", "true")
