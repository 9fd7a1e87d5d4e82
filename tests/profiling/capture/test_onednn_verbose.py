"""The two copies of oneDNN that a process with IPEX has write to one log."""

import sys
from pathlib import Path

import pytest

from profiling.onednn_log.log import read_logs
from tests.support.commands import run_program
from tests.support.fast_precision import needs_bf16

TWO_COPIES = """
import os, sys
import torch
from common.console import separate_python_output, redirected
from profiling.capture.backends import verbose
from retinanet.engine.engines import import_ipex

ipex = import_ipex()
conv = torch.nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last).train()
optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
conv, optimizer = ipex.optimize(conv, optimizer=optimizer, dtype=torch.bfloat16)
images = torch.randn(1, 16, 32, 32).to(memory_format=torch.channels_last)
matrix = torch.randn(64, 64).bfloat16()
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with separate_python_output():
    for _ in range(2):
        with redirected(1, log), verbose():
            print("from Python")
            with torch.autocast("cpu", torch.bfloat16):
                conv(images)
            matrix @ matrix
        matrix @ matrix
"""


@pytest.mark.ipex
@needs_bf16
def test_torchs_and_ipexs_onednn_both_write_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "both.log"
    done = run_program(sys.executable, "-c", TWO_COPIES, log)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "from Python\n" * 2
    read = read_logs([log])
    assert len(read.versions) == 2
    counts = {problem.kind: calls.count for problem, calls in read.calls().items()}
    assert counts["convolution"] == counts["matmul"] == 2  # the last product is not logged
    assert not [line for line in log.read_text().splitlines() if "verbose" not in line]
