"""The benchmark of gradients between hosts, as a calculation and on simulated hosts."""

import json
import os
from pathlib import Path

import pytest

from common.errors import InputError
from profiling.__main__ import main
from profiling.bench import all_reduce
from profiling.bench.all_reduce import Measured, compare, rate_of, waiting
from profiling.bench.simulated_hosts import (
    Link,
    NoSimulatedHostsError,
    simulated_hosts,
)
from tests.launch.ranks import MPIRUNS
from tests.support.commands import RunHere, error_line, run_program, start_program
from tests.support.rank_steps import rank_steps


def measured(way: str, *seconds: float, rate: float = 1.0) -> Measured:
    return Measured(
        rate=rate,
        way=way,
        wire="bf16",
        seconds=list(seconds),
        bound_s=2.0,
        error=0.0,
        are_equal=True,
    )


def test_ratios_are_of_rounds_and_targets_of_the_rate() -> None:
    both = [measured("two levels (mpi)", 2.0, 6.0, 3.0), measured("gloo over all", 4.0, 6.0, 12.0)]
    ratio, share = compare(both, targets=0.6)
    assert (ratio.value, ratio.is_met, share.value, share.is_met) == (0.5, True, 1.5, False)
    fast = [measured("two levels (mpi)", 9.0, rate=10.0), measured("gloo", 6.0, rate=10.0)]
    ratio, share = compare(fast, targets=None)
    assert (ratio.value, ratio.target, share.target) == (1.5, "", "")


def test_share_of_waiting_is_that_of_the_rank_that_was_ready_last() -> None:
    job = [
        rank_steps(0, [2.0, 4.0, 2.0], exchange=[1.0, 0.1, 0.5]),
        rank_steps(1, [2.0, 4.0, 1.0], exchange=[0.1, 2.0, 0.2]),
    ]
    step, share = waiting(job, rate=10.0, has_target=True)
    assert (step.value, share.value, share.is_met) == (2.0, 0.05, True)
    _, share = waiting(job, rate=1.0, has_target=False)
    assert share.target == ""


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "1e9"])
def test_rate_must_be_that_of_a_link(text: str) -> None:
    with pytest.raises(InputError, match=r"^--rates: expected Gbit/s such as 1,10"):
        rate_of(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hosts", "1"), "error: --hosts: expected 2 to 254, found 1"),
        (("--hosts", "400"), "error: --hosts: expected 2 to 254, found 400"),
        (("--rates", "1,,"), "error: --rates: expected Gbit/s such as 1,10, found ''"),
        (("--rates", "10,fast"), "error: --rates: expected Gbit/s such as 1,10, found 'fast'"),
    ],
)
def test_options_are_checked_before_anything_is_measured(
    options: tuple[str, ...],
    message: str,
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured_nothing(rate: float, **_: object) -> list[Measured]:
        raise AssertionError(f"measured at {rate} Gbit/s")

    monkeypatch.setattr(all_reduce, "measure", measured_nothing)
    assert error_line(run_here(main, "bench", "all-reduce", *options)) == message


@pytest.mark.whole_machine
def test_link_limits_the_rate_between_simulated_hosts(tmp_path: Path) -> None:
    script = """
import socket, sys, time
if sys.argv[1] == "listen":
    connection, _ = socket.create_server(("10.0.0.2", 5000)).accept()
    while connection.recv(1 << 16):
        pass
else:
    end = time.time() + 10
    while True:
        try:
            connection = socket.create_connection(("10.0.0.2", 5000))
            break
        except OSError:
            assert time.time() < end
    begin = time.time()
    connection.sendall(bytes(6_000_000))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(time.time() - begin)
"""
    try:
        with simulated_hosts(["a", "b"], tmp_path, link=Link(bits_per_second=1e8)) as hosts:
            python = ["python3", "-c", script]
            listener = start_program(*hosts.enter[1], *python, "listen")
            done = run_program(*hosts.enter[0], *python, "send", timeout=60)
            listener.communicate(timeout=10)
    except NoSimulatedHostsError as error:
        pytest.skip(str(error))
    # 48 Mbit, of which the token bucket passes 2 Mbit at once; Ethernet's headers come on top.
    assert 0.4 < float(done.stdout) < 5, done.stderr


@pytest.mark.slow
@pytest.mark.whole_machine
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_all_ranks_of_simulated_hosts_get_equal_averages(
    tmp_path: Path, run_here: RunHere, mpirun: Path
) -> None:
    file = tmp_path / "result.json"
    sizes = ("--hosts", "2", "--ranks", "2", "--gradients", "300000", "--rounds", "2")
    options = ("--rates", "1", "--mpirun", mpirun, "--json", file)
    done = run_here(main, "bench", "all-reduce", *sizes, *options)
    assert done.returncode == 0, done.stderr
    content = json.loads(file.read_text())
    family = content["workload"]["mpirun"]
    assert MPIRUNS[family] == mpirun and f"ranks started by {family}" in done.stdout
    runs = content["workload"]["runs"]
    assert [run["wire"] for run in runs] == ["float32", "float32", "bf16", "bf16"]
    assert runs[0]["way"] == "two levels (shared memory, between hosts by mpi)"
    assert all(run["are_equal"] for run in runs)
    assert runs[0]["error"] < 1e-6 and 1e-4 < runs[2]["error"] < 2**-8
    # Of 4 bytes each, a host sends as many as it has: 2 (H - 1) / H is 1.
    assert runs[0]["bound_s"] == pytest.approx(300_000 * 4 * 8 / 1e9)
    assert len(content["findings"]) == 4
