import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from profiling.bench.worker_pool import busy_cores
from tests.launch.processes_left import children_of, wait_until_ended


def seconds_used(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_core_is_kept_busy_by_a_process_of_its_own_until_the_context_ends() -> None:
    cpu = max(os.sched_getaffinity(0))
    before = set(children_of(os.getpid()))
    with busy_cores([cpu]):
        [loop] = set(children_of(os.getpid())) - before
        assert os.sched_getaffinity(loop) == {cpu}
        used = seconds_used(loop)
        time.sleep(0.5)
        assert seconds_used(loop) - used > 0.05
    assert set(children_of(os.getpid())) == before


def test_a_loop_ends_with_a_benchmark_that_is_killed() -> None:
    program = f"""
import time
from profiling.bench.worker_pool import busy_cores
with busy_cores([{min(os.sched_getaffinity(0))}]):
    print("busy", flush=True)
    time.sleep(60)
"""
    repository = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout is not None and benchmark.stdout.readline() == b"busy\n"
        [loop] = children_of(benchmark.pid)
        benchmark.send_signal(signal.SIGKILL)
    wait_until_ended([loop])
