"""Trainings of several ranks whose ports a stranger attacks, from their start on."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.launch.attacker import Malice
from tests.launch.listening import Listening, listening_of_job
from tests.launch.ranks import REPOSITORY, ended, start_apart, start_ranks
from tests.launch.two_hosts import ADDRESSES, two_hosts
from tests.support.commands import start_program
from tests.support.training_runs import read_records, wait_for_steps

pytestmark = [pytest.mark.whole_machine, pytest.mark.slow]

Jobs = list[subprocess.Popen[str]]
SETTINGS = (
    "data.scenes.train=8",
    "data.scenes.validation=1",
    "data.image_size=64",
    "training.batch_size=1",
    "training.epochs=100000",
    "training.max_steps=100000",
    "evaluation.every=100000",
    "evaluation.pictures=0",
    "engine.precision=float32",
    "launch.threads=1",
    "distributed.timeout_s=90",
)


@contextmanager
def attacked(
    text: str, address: str, marker: Path, enter: Sequence[str] = ()
) -> Iterator[Callable[[], tuple[int, dict[str, bytes]]]]:
    """Attack a job from its start on; yields what its store told: port and values."""
    command = (sys.executable, "-m", "tests.launch.attacker", text, address, str(marker))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    attacker = start_program(*enter, *command, stdin=subprocess.PIPE, env=environment)
    stream = attacker.stdout
    assert stream is not None

    def read() -> tuple[int, dict[str, bytes]]:
        attacker.kill()
        lines = list(map(json.loads, stream))
        [port] = {line["port"] for line in lines}
        return port, {line["name"]: bytes.fromhex(line["value"]) for line in lines}

    try:
        assert stream.readline() == "ready\n"
        yield read
    finally:
        attacker.kill()
        attacker.communicate()


def watch_start(run: Path, jobs: Jobs) -> tuple[set[Listening], set[bytes]]:
    """Return the sockets that listened, and the secrets in files, until a run took two steps."""
    sockets, secrets = set[Listening](), set[bytes]()
    end = time.monotonic() + 240
    while len(read_records(run, kind="step")) < 2:
        assert jobs[0].poll() is None and time.monotonic() < end, f"{run}: no two steps"
        sockets |= listening_of_job(str(run.parent))
        for file in run.parent.glob(".retinanet-secret-*"):
            with suppress(OSError):
                secrets.add(file.read_bytes())
        time.sleep(0.01)
    return sockets, secrets - {b""}


def by_mpirun(*settings: str) -> Jobs:
    return [start_ranks(2, "train.py", *settings)]


def by_variables(*settings: str) -> Jobs:
    return start_apart(2, "train.py", *settings)


def put_pickles(port: int, marker: Path, job: subprocess.Popen[str]) -> None:
    """Replace results of the second compute group by pickles that make a folder.

    Again and again until the job ends: the group replaces them by its own, which may be read first.
    """
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False
    )
    content: Any = pickle.dumps(Malice(str(marker)))
    end = time.monotonic() + 120
    with suppress(dist.DistError):  # the store ends with the job
        while job.poll() is None and time.monotonic() < end:
            for step in range(1000):
                store.set(f"stretch 1/results of group 1/{step}", content)


@pytest.mark.parametrize(
    ("start", "groups"),
    [
        (by_mpirun, 2),
        pytest.param(by_variables, 1, marks=pytest.mark.exhaustive),
    ],
)
def test_stranger_on_the_host_of_all_ranks_gets_nothing_and_runs_nothing(
    start: Callable[..., Jobs], groups: int, tmp_path: Path
) -> None:
    run, marker = tmp_path / "run", tmp_path / "made-by-a-pickle"
    settings = [*SETTINGS, f"run.root={tmp_path}", "run.name=run", f"distributed.groups={groups}"]
    with attacked(str(tmp_path), "127.0.0.1", marker) as read:
        jobs = start(*settings)
        try:
            sockets, secrets = watch_start(run, jobs)
            # Whoever is on another host can connect to none of them.
            assert sockets and {item for item in sockets if not item.is_loopback} == set()
            assert list(tmp_path.glob(".retinanet-secret-*")) == []
            steps = len(read_records(run, kind="step"))
            wait_for_steps(run, jobs[0], count=steps + 2)
            port, values = read()
            check_values(values, secrets, has_file=start is by_variables)
            if groups > 1:
                put_pickles(port, marker, jobs[0])
            else:
                jobs[0].send_signal(signal.SIGTERM)
            first, *_ = map(ended, jobs)
        finally:
            for job in jobs:
                job.kill()
    assert not marker.exists()
    if groups > 1:
        assert first.code == 2
        assert "was not written by a rank of this job" in first.errors
        assert "Traceback" not in first.errors
    else:
        assert first.code == 75, first.errors


def check_values(values: dict[str, bytes], secrets: set[bytes], *, has_file: bool) -> None:
    """Check that a store has told a stranger no secret."""
    assert "about/0" in values and not {"watch key", "secret"} & values.keys()
    assert len(secrets) == has_file
    assert not any(secret in value for secret in secrets for value in values.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("groups", [1, 2])
def test_stranger_in_the_network_of_two_hosts_reads_no_secret_and_runs_nothing(
    groups: int, tmp_path: Path
) -> None:
    run, marker = tmp_path / "runs" / "run", tmp_path / "made-by-a-pickle"
    run.parent.mkdir()
    settings = [*SETTINGS, f"run.root={run.parent}", "run.name=run", f"distributed.groups={groups}"]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500"}
    with two_hosts(tmp_path, names_are_loopback=True) as hosts:
        text, right = str(run.parent), hosts.enter[1]
        with attacked(text, ADDRESSES[0], marker, right) as read:
            jobs = [
                hosts.start_on(
                    rank,
                    [sys.executable, "train.py", *settings],
                    environment={**os.environ, **variables, "RANK": str(rank)},
                )
                for rank in range(2)
            ]
            try:
                sockets, secrets = watch_start(run, jobs)
                # Not on other networks of the hosts.
                used = {item.address for item in sockets if not item.is_loopback}
                assert used <= set(ADDRESSES)
                steps = len(read_records(run, kind="step"))
                wait_for_steps(run, jobs[0], count=steps + 2)
                check_values(read()[1], secrets, has_file=True)
                jobs[0].send_signal(signal.SIGTERM)
                first, _ = map(ended, jobs)
            finally:
                for job in jobs:
                    job.kill()
    assert first.code == 75, first.errors
    assert not marker.exists() and "all interfaces" not in first.output
