"""The state of hosts, read from copies of /sys and /proc."""

import time
from pathlib import Path

import pytest

from launch.host_state import HostState, NodeMemory, read_host_state
from tests.launch import host_trees
from tests.launch.host_trees import CPU, GB, write_host


def test_tuned_host(tmp_path: Path) -> None:
    state = read_host_state(host_trees.tuned_xeon(tmp_path))
    assert state.settings() == {
        "frequency driver": "intel_pstate",
        "frequency governor": "performance",
        "energy preference": "performance",
        "turbo": "on",
        "hyperthreads": "on",
        "memory": "4800 MT/s (rated 5600)",
        "NUMA balancing": "off",
        "huge pages": "madvise",
        "swappiness": "1",
    }
    assert state.capacities() == {"number of cores": "16", "memory size": "480 GiB", "swap": "none"}
    assert (state.cores, state.load, state.running) == (16, 0.2, 1)
    assert (state.swap, state.swap_used) == (0, 0)
    assert [node.node for node in state.nodes] == [0, 1]
    # Copies of files count as available.
    assert state.nodes[0].available == pytest.approx(240 * GB, rel=1e-6)


def test_virtual_machine_without_frequencies(tmp_path: Path) -> None:
    state = read_host_state(host_trees.epyc_vm(tmp_path))
    assert (state.governor, state.energy_preference, state.turbo, state.memory_speed) == ("",) * 4
    assert state.huge_pages == "always" and state.cores == 8
    assert "governor" not in state.to_dict()


def test_processors_that_differ_are_all_named(tmp_path: Path) -> None:
    host_trees.tuned_xeon(tmp_path)
    write_host(tmp_path, {f"{CPU}/cpufreq/policy7/scaling_governor": "powersave"})
    assert read_host_state(tmp_path).governor == "performance, powersave"


def test_amd_turbo_is_called_boost(tmp_path: Path) -> None:
    state = read_host_state(write_host(tmp_path, {f"{CPU}/cpufreq/boost": "0"}))
    assert (state.turbo, state.turbo_file) == ("off", "cpufreq/boost")


@pytest.mark.parametrize(
    ("available", "modules"),
    [
        (15.5, "16 GiB"), (23.4, "24 GiB"), (62.5, "64 GiB"), (188, "192 GiB"), (251.4, "256 GiB"),
        (377, "384 GiB"), (503, "512 GiB"), (503.7, "512 GiB"), (755, "768 GiB"),
        (1007, "1024 GiB"), (2014, "2048 GiB"),
    ],
)  # fmt: skip
def test_size_of_the_memory_modules_is_estimated(available: float, modules: str) -> None:
    assert HostState(memory=int(available * 2**30)).capacities() == {"memory size": modules}


HOSTILE = {
    "empty": b"",
    "binary": bytes(range(256)),
    "words": b"no such thing",
    "minus": b"-1\n",
    "digits": b"9" * 5000,
    "not ASCII": "²".encode(),
    "brackets": b"[[]] : : /",
}


@pytest.mark.parametrize("content", [*HOSTILE.values(), None], ids=[*HOSTILE, "a folder"])
def test_files_of_other_content_are_unknown(content: bytes | None, tmp_path: Path) -> None:
    host_trees.tuned_xeon(tmp_path)
    for file in [file for file in tmp_path.rglob("*") if file.is_file()]:
        file.unlink()
        if content is None:
            file.mkdir()
        else:
            file.write_bytes(content)
    assert read_host_state(tmp_path) == HostState()


def test_missing_files_are_unknown(tmp_path: Path) -> None:
    assert read_host_state(tmp_path / "nowhere") == HostState()
    assert HostState().to_dict() == {}


def test_values_are_kept_for_the_environment(tmp_path: Path) -> None:
    facts = read_host_state(host_trees.laptop(tmp_path)).to_dict()
    assert facts["governor"] == "powersave" and facts["huge_pages"] == "never"
    assert facts["swap_used"] == pytest.approx(3 * GB, rel=1e-6)
    assert [sorted(node) for node in facts["nodes"]] == [["available", "node", "size"]]


def test_this_host_is_read_in_little_time() -> None:
    began = time.process_time()
    state = read_host_state()
    assert time.process_time() - began < 0.1
    assert state.memory and isinstance(state.nodes, tuple)
    assert all(isinstance(node, NodeMemory) for node in state.nodes)
