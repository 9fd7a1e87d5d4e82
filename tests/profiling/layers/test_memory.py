import sys
from pathlib import Path

import pytest

from launch.environment import MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL, MPOL_PREFERRED
from profiling.bench.variant import (
    huge_pages_environment,
    huge_pages_mb,
    huge_pages_remark,
    memory_remark,
    parse_memory,
)
from tests.launch.test_environment import PRINT_POLICY
from tests.support.commands import error_message, run_program

READ_BACK = f"""{PRINT_POLICY}
from profiling.bench.variant import apply_memory
for text in ("interleave", "membind=0", "preferred=0", "local"):
    apply_memory(text, allowed=[0])
    print(policy()[0])
"""


def test_numactls_choices_are_read() -> None:
    for text, mode, nodes in (
        ("local", MPOL_LOCAL, set()),
        ("interleave", MPOL_INTERLEAVE, {0, 1, 2}),
        ("interleave=0,2", MPOL_INTERLEAVE, {0, 2}),
        ("membind=0-1", MPOL_BIND, {0, 1}),
        ("preferred=1", MPOL_PREFERRED, {1}),
    ):
        assert parse_memory(text, allowed=[0, 1, 2]) == (mode, frozenset(nodes))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("near", "expected local, interleave, "),
        ("local=0", "expected local, interleave, "),
        ("membind", "expected local, interleave, "),
        ("membind=", "membind=: no memory node is given"),
        ("membind=x", "membind=x: expected a list such as 0-3,8"),
        ("preferred=0,1", "preferred=0,1: preferred takes exactly one node"),
        ("membind=0,7", "membind=0,7: memory node 7 is not available"),
    ],
)
def test_a_wrong_choice_is_one_line(text: str, problem: str) -> None:
    assert error_message(parse_memory, text, allowed=[0, 1, 2]).startswith(f"--memory: {problem}")


def test_the_kernel_has_the_policy_afterwards() -> None:
    done = run_program(sys.executable, "-c", READ_BACK)
    if "rejects the memory policy" in done.stderr:
        pytest.skip("set_mempolicy is not permitted here")
    assert done.returncode == 0, done.stderr
    expected = [MPOL_INTERLEAVE, MPOL_BIND, MPOL_PREFERRED, MPOL_LOCAL]
    assert [int(line) for line in done.stdout.split()] == expected


def test_one_memory_node_is_told() -> None:
    assert memory_remark("interleave", allowed=[0]) == (
        "--memory interleave: no effect, memory node 0 is the only one"
    )
    assert memory_remark("interleave", allowed=[0, 1]) == ""


def test_huge_pages_that_have_no_effect_are_told(tmp_path: Path) -> None:
    file = tmp_path / "enabled"
    assert "no transparent huge pages" in huge_pages_remark(file)
    for text, words in (
        ("always madvise [never]", "disabled"),
        ("[always] madvise never", "all processes"),
        ("always [madvise] never", ""),
    ):
        file.write_text(text)
        remark = huge_pages_remark(file, glibc="glibc 2.36")
        assert words in remark and bool(remark) == bool(words)
    assert "requires glibc 2.35" in huge_pages_remark(file, glibc="glibc 2.31")
    assert "requires glibc 2.35" in huge_pages_remark(file, glibc="musl")


def test_tunables_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    expected = "glibc.malloc.check=0:glibc.malloc.hugetlb=1"
    assert huge_pages_environment() == {"GLIBC_TUNABLES": expected}
    (tmp_path / "rollup").write_text("Rss: 10 kB\nAnonHugePages:     2048 kB\n")
    assert huge_pages_mb(tmp_path / "rollup") == 2048 * 1024 / 1e6
    assert huge_pages_mb(tmp_path / "none") == 0
