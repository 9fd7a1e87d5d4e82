import errno
import platform

import pytest

from launch import environment
from launch.environment import prefer_memory
from tests.launch.denied_calls import DENY
from tests.launch.ranks import run_python

known = pytest.mark.skipif(
    platform.machine() not in environment.SYSTEM_CALLS, reason="the call's number is not known"
)

READ_BACK = """
import ctypes, platform
def policy():
    call = {"x86_64": 239, "aarch64": 236}[platform.machine()]
    mode, nodes = ctypes.c_int(), (ctypes.c_ulong * 16)()
    if ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(call), ctypes.byref(mode), nodes, ctypes.c_ulong(1024), None, ctypes.c_long(0)
    ):
        raise OSError(ctypes.get_errno())
    bits = sum(word << 64 * place for place, word in enumerate(nodes))
    return mode.value, [node for node in range(1024) if bits >> node & 1]
"""


def run(text: str) -> str:
    done = run_python(text)
    assert done.code == 0, done.errors
    return done.output.strip()


@known
def test_node_is_preferred_in_this_process_and_its_children() -> None:
    done = run(f"""{READ_BACK}
import os
from launch.environment import prefer_memory
assert policy() == (0, [])
assert prefer_memory([0], allowed=[0, 1]) is None
print(policy(), flush=True)
if os.fork() == 0:
    print(policy(), flush=True)
""")
    assert done.splitlines() == ["(1, [0])"] * 2  # MPOL_PREFERRED


@known
def test_several_nodes_are_preferred_together() -> None:
    done = run(f"""{READ_BACK}
from launch.environment import set_policy, MPOL_PREFERRED_MANY
print(set_policy(MPOL_PREFERRED_MANY, [0]), policy())
""")
    if done.startswith(str(errno.EINVAL)):
        pytest.skip("the kernel is older than 5.15")
    assert done == "None (5, [0])"


@known
def test_container_without_permission_gives_a_note() -> None:
    done = run(f"""{DENY}
import platform
from launch.environment import SYSTEM_CALLS, prefer_memory
deny(SYSTEM_CALLS[platform.machine()])
print(prefer_memory([0, 1], allowed=[0, 1, 2]))
""")
    assert done.startswith("memory nodes 0, 1: the memory policy is not permitted")
    assert "--cap-add SYS_NICE" in done


def test_single_node_needs_no_policy() -> None:
    done = run(f"""{READ_BACK}
from launch.environment import prefer_memory
print(prefer_memory([0], allowed=[0]), prefer_memory([0], allowed=[]), policy())
""")
    assert done == "None None (0, [])"


def test_nodes_that_are_not_allowed_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    preferred: list[list[int]] = []
    monkeypatch.setattr(environment, "set_preferred", preferred.append)
    assert prefer_memory([2, 3], allowed=[0, 3, 4]) is None
    assert preferred == [[3]]
    note = prefer_memory([2], allowed=[0, 1])
    assert note is not None and note.startswith("memory node 2: not allowed")
    assert preferred == [[3]]


@known
def test_node_unknown_to_the_kernel_gives_a_note() -> None:
    done = run("""
from launch.environment import prefer_memory
print(prefer_memory([900], allowed=[0, 900]))
""")
    assert done.startswith("memory node 900: the memory policy cannot be set (Invalid argument)")
