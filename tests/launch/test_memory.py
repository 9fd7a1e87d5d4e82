import platform
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

FAULTS_OF_TEN_TENSORS = """
import resource, sys
from launch.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
import torch
torch.set_num_threads(1)
for _ in range(25):  # the heap takes four to eight rounds to grow as far as it has to
    torch.ones(25_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(25_000_000)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> tuple[str, int]:
    command = [sys.executable, "-c", FAULTS_OF_TEN_TENSORS, mode]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the policy is glibc's")
def test_kept_memory_is_used_again_without_page_faults() -> None:
    kept, with_policy = faults("keep")
    _, without = faults("leave")
    assert kept == "True"
    assert with_policy < without / 20, (with_policy, without)


def test_the_policy_is_set_without_loading_torch() -> None:
    text = "import sys, launch.memory, launch.ranks; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY, check=True)
