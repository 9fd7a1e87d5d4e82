import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.__main__ import main
from tests.support.commands import RunHere

REPOSITORY = Path(__file__).resolve().parents[2]

TWO_SOCKETS_OF_4_CORES = """\
# CPU,Core,Socket,Node
0,0,0,0
1,1,0,0
2,2,0,0
3,3,0,0
4,4,1,1
5,5,1,1
6,6,1,1
7,7,1,1
8,0,0,0
9,1,0,0
10,2,0,0
11,3,0,0
12,4,1,1
13,5,1,1
14,6,1,1
15,7,1,1
"""


LONGEST_PLAN = 60
"""Seconds after which a plan is taken to hang; one takes about a second."""


def run_plan(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch", "plan", *map(str, arguments)]
    # A pipe, whatever the terminal of the tests.
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_PLAN,
    )


@pytest.fixture
def described(tmp_path: Path) -> Path:
    file = tmp_path / "big.txt"
    file.write_text(TWO_SOCKETS_OF_4_CORES, encoding="utf-8")
    return file


def planned(run_here: RunHere, json_file: Path, *arguments: str | Path) -> dict[str, Any]:
    done = run_here(main, "plan", "--json", json_file, *arguments)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(json_file.read_text(encoding="utf-8"))
    return content


def test_a_described_host_is_drawn_with_a_cell_for_each_core(described: Path) -> None:
    done = run_plan(
        "--np", "2", "--topology", described, "launch.comm_cores=1", "data.reserve_cores=1"
    )
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[:5] == [
        "host big, ranks 0-1",
        "2 sockets of 4 cores, 2 CPUs a core",
        "rank ┃ socket ┃ nodes ┃ threads ┃ compute on CPUs ┃ communicate ┃ load",
        "━━━━━╇━━━━━━━━╇━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━╇━━━━━",
        "   0 │      0 │     0 │       2 │ 0-1             │ 2           │ 3,11",
    ]
    assert lines[6:13] == [
        "╭─ socket 0 ──────────╮",
        "│ node 0  0  0  0c 0L │",
        "╰─────────────────────╯",
        "╭─ socket 1 ──────────╮",
        "│ node 1  1  1  1c 1L │",
        "╰─────────────────────╯",
        "  numbers are ranks: 0 computes, 0c communicates, 0L loads images",
    ]


def test_a_host_of_2048_cores_of_one_node_is_planned_at_once(tmp_path: Path) -> None:
    rows = [f"{cpu},{cpu},0,0" for cpu in range(2048) if cpu != 77]
    file = tmp_path / "huge.txt"
    file.write_text("\n".join(["# CPU,Core,Socket,Node", *rows]), encoding="utf-8")
    done = run_plan("--np", "8", "--topology", file)
    assert done.returncode == 0, done.stderr
    assert "7 of 2047 cores are idle" in done.stdout


def test_json_has_every_rank_with_its_environment(
    described: Path, tmp_path: Path, run_here: RunHere
) -> None:
    content = planned(
        run_here,
        tmp_path / "plan.json",
        *("--topology", described, "--hosts", "n[1-2]:2", "--openmp", "gnu", "--backend", "gloo"),
    )
    assert content["hosts"] == [{"host": "n1", "ranks": [0, 1]}, {"host": "n2", "ranks": [2, 3]}]
    assert content["topology"] == {
        "sockets": 2,
        "nodes": 2,
        "cores": 8,
        "cpus": "0-15",
        "allowed_cpus": "0-15",
        "quota": None,
    }
    assert content["notes"] == []
    places = [(one["rank"], one["host"], one["socket"]) for one in content["ranks"]]
    assert places == [(0, "n1", 0), (1, "n1", 1), (2, "n2", 0), (3, "n2", 1)]
    last = content["ranks"][3]
    assert last["env"]["OMP_NUM_THREADS"] == "4"
    del last["env"]
    assert last == {
        "rank": 3,
        "host": "n2",
        "socket": 1,
        "nodes": [1],
        "threads": 4,
        "floating": False,
        "cpus": [4, 5, 6, 7],
        "comm_cpus": [],
        "loader_cpus": [],
    }


def test_hosts_with_as_many_ranks_are_drawn_once(described: Path, run_here: RunHere) -> None:
    done = run_here(main, "plan", "--topology", described, "--hosts", "a:2,b:4,c:2")
    pictures = [line for line in done.stdout.splitlines() if line.startswith(("host", "2 hosts"))]
    assert pictures == [
        "2 hosts, all the same, a (ranks 0-1), c (ranks 6-7); shown is a",
        "host b, ranks 2-5",
    ]


def test_cpus_that_may_not_be_used_are_marked(described: Path, run_here: RunHere) -> None:
    done = run_here(main, "plan", "--topology", described, "--cpus", "1-2,9")
    assert "node 0  x 0 0 x" in done.stdout
    assert "node 1  x x x x" in done.stdout
    assert "only CPUs 1-2,9 may be used" in done.stdout


def test_a_quota_is_planned_for_and_noted(
    described: Path, tmp_path: Path, run_here: RunHere
) -> None:
    content = planned(run_here, tmp_path / "plan.json", "--topology", described, "--quota", "1.5")
    rank = content["ranks"][0]
    assert (rank["threads"], rank["floating"], rank["cpus"]) == (1, True, [0, 1, 2, 3])
    assert content["notes"][1].startswith("the CPU quota of 1.5 keeps 1 of 4 cores busy")


def test_a_configuration_that_does_not_pin_is_noted(
    described: Path, tmp_path: Path, run_here: RunHere
) -> None:
    arguments = ("--np", "2", "--topology", described, "launch.pin=false")
    content = planned(run_here, tmp_path / "plan.json", *arguments)
    assert content["notes"] == [
        "launch.pin=false: a run puts its ranks nowhere; this is what it would do with true"
    ]


def test_long_variables_are_shown_to_their_end(described: Path, run_here: RunHere) -> None:
    row = [f"{cpu},{cpu},0,0" for cpu in range(100, 160)]
    described.write_text("\n".join(["# CPU,Core,Socket,Node", *row]), encoding="utf-8")
    done = run_here(main, "plan", "--topology", described, "--openmp", "intel")
    words = "".join(done.stdout.partition("KMP_AFFINITY=")[2].split("│")).split()
    assert "".join(words).startswith(
        f"granularity=fine,explicit,proclist=[{','.join(str(cpu) for cpu in range(100, 160))}]"
    )


def test_this_machine_is_planned_within_its_affinity(tmp_path: Path, run_here: RunHere) -> None:
    content = planned(run_here, tmp_path / "plan.json")
    assert set(content["ranks"][0]["cpus"]) <= os.sched_getaffinity(0)
    assert len(content["ranks"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--np", "3"],
            "3 ranks do not fit evenly on 2 sockets of 4 cores: "
            "use 1, 2, 4 or 8 ranks (mpirun -np, or --np)",
        ),
        (
            ["--cpus", "3,99"],
            "--cpus 3,99: the host has no CPU 99 to use; choose among 0-15",
        ),
        (
            ["--np", "3", "--hosts", "a,b"],
            "--np 3: does not divide evenly among 2 hosts; use 2 or 4, or counts such as a:2",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    described: Path, arguments: list[str], message: str, run_here: RunHere
) -> None:
    done = run_here(main, "plan", "--topology", described, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("quota", ["0", "nan", "half", "-1"])
def test_a_quota_that_is_none_is_refused(quota: str, run_here: RunHere) -> None:
    done = run_here(main, "plan", f"--quota={quota}")
    assert done.returncode == 2
    assert f"expected a number of CPUs such as 1.5, found {quota!r}" in done.stderr


def test_an_existing_json_file_is_kept(described: Path, tmp_path: Path, run_here: RunHere) -> None:
    kept = tmp_path / "plan.json"
    kept.write_text("mine", encoding="utf-8")
    done = run_here(main, "plan", "--topology", described, "--json", kept)
    assert done.returncode == 2
    assert kept.read_text(encoding="utf-8") == "mine"
