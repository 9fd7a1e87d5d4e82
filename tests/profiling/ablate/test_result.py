"""The plan of an ablation on this machine, and the file of its result."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.machine import fastest_precision
from profiling.ablate import result as result_module
from profiling.ablate.result import (
    JOBS,
    ComparedCalls,
    lacking,
    read_result,
    resolve_plan,
    write_result,
)
from profiling.bench.variant import Workload
from tests.profiling.ablate.samples import ablation, result, run

RESULT = result({"slow": [run(3.0, loss=0.1), run(3.5, loss=0.2)], "quick": [run(2.0), run(2.5)]})


def test_options_of_a_variant_override_size_and_ablation() -> None:
    definition = ablation(
        options={"wait": 0.3, "precision": "auto"},
        quick={"options": {"wait": 0.2}, "rounds": 3},
        variants={
            "slow": {"about": "", "options": {"wait": 0.1}},
            "quick": {"about": "", "allocator": "system"},
        },
    )
    plan = resolve_plan("made", definition, size="quick")
    slow, quick = plan.variants.values()
    assert (slow.options["wait"], quick.options["wait"]) == (0.1, 0.2)
    assert slow.options["precision"] == fastest_precision()
    assert (slow.allocator, quick.allocator) == ("tuned", "system")
    assert plan.rounds == 3
    assert resolve_plan("made", definition, size="full").variants["quick"].options["wait"] == 0.3


def test_sizes_and_rounds_have_defaults() -> None:
    quick = resolve_plan("made", ablation(), size="quick")
    assert quick.workload == Workload(images=1, image_size=320, classes=264)
    assert (quick.rounds, quick.warm_up) == (8, 2)
    full = resolve_plan("made", ablation(full={"warm_up": 0}), size="full", rounds=9)
    assert full.workload == Workload(images=2, image_size=800, classes=264)
    assert (full.rounds, full.warm_up) == (9, 0)


def test_impossible_variant_is_left_out_with_the_reason() -> None:
    cores = len(os.sched_getaffinity(0))
    definition = ablation(
        variants={
            "one": {"about": ""},
            "two": {"about": "", "options": {"ranks": 2 * cores, "threads": 3}},
            "three": {"about": ""},
        },
        comparisons=[{"change": "two", "baseline": "one"}, {"change": "three", "baseline": "one"}],
    )
    plan = resolve_plan("made", definition, size="quick")
    assert list(plan.variants) == ["one", "three"]
    assert plan.left_out == {
        "two": f"requires more than the {cores} cores available to this process"
    }


def test_variant_without_counterpart_is_left_out() -> None:
    definition = ablation(
        variants={"slow": {"about": ""}, "quick": {"about": "", "options": {"ranks": 10**6}}}
    )
    plan = resolve_plan("made", definition, size="quick")
    assert not plan.variants
    assert plan.left_out["slow"] == "none of the variants that it is compared with can run here"


def test_variant_without_comparison_runs() -> None:
    variants = {name: {"about": ""} for name in ("slow", "quick", "other")}
    assert list(resolve_plan("made", ablation(variants=variants), size="quick").variants) == [
        "slow",
        "quick",
        "other",
    ]


def without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_module, "cpu_flags", lambda: {"avx512f"})


def test_missing_requirement_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(options: dict[str, str] | None = None, **fields: object) -> str | None:
        variant = ablation(variants={"slow": {"about": "", **fields}, "quick": {"about": ""}})
        slow = variant.variants["slow"]
        return lacking(slow, options or {}, allocator=slow.allocator or "tuned")

    assert reason() is None
    without_bf16(monkeypatch)
    assert reason(needs=["bf16"]) == (
        "the processor has no instructions for BF16 (amx_bf16 or avx512_bf16)"
    )
    monkeypatch.setattr(result_module, "find", lambda allocator: None)
    assert reason(allocator="jemalloc") == (
        "jemalloc is not installed (apt-get install libjemalloc2)"
    )
    monkeypatch.setattr(result_module, "pillow_simd_folder", lambda: None)
    assert "./setup.sh simd-beside" in str(reason(pillow_simd=True))
    assert str(reason({"decoder": "accimage"})).startswith("accimage is not installed")


def test_memory_policy_needs_two_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variant = ablation(variants={"slow": {"about": "", "memory": "local"}, "quick": {"about": ""}})

    class Allowance:
        memory_nodes = frozenset({0})

    monkeypatch.setattr(result_module, "read_allowance", Allowance)
    reason = lacking(variant.variants["slow"], {}, allocator="tuned")
    assert reason == "requires two memory nodes (two sockets), this machine has 1"
    Allowance.memory_nodes = frozenset({0, 1})
    assert lacking(variant.variants["slow"], {}, allocator="tuned") is None


def test_definition_has_no_path_of_this_machine() -> None:
    variants = {
        "slow": {"about": ""},
        "quick": {"about": "", "huge_pages": True, "allocator": "system"},
    }
    plan = resolve_plan("made", ablation(variants=variants), size="quick")
    assert str(Path.cwd()) not in str(plan.definition)
    assert plan.definition["variants"]["slow"] == {
        "recipe": "tests.profiling.ablate.counting_recipe",
        "options": {},
        "allocator": "tuned",
        "pinned": True,
        "huge_pages": False,
        "memory": None,
        "pillow_simd": False,
    }


def test_threads_are_pinned_except_in_jobs() -> None:
    plan = resolve_plan("made", ablation(), size="quick")
    assert plan.variants["slow"].environment["OMP_PROC_BIND"] == "close"
    jobs = ablation(recipe=JOBS, options={"ranks": 1, "threads": 1})
    plan = resolve_plan("made", jobs, size="quick")
    assert not plan.variants["slow"].environment
    assert not plan.definition["variants"]["slow"]["pinned"]


def test_result_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "some" / "result.json"
    calls: ComparedCalls = {
        "first": "slow",
        "second": "quick",
        "logs": ["slow.log", "quick.log"],
        "kinds": [
            {
                "kind": "convolution forward",
                "first_calls": 90.0,
                "second_calls": 80.0,
                "first_ms": 2.5,
                "second_ms": 2.0,
            }
        ],
        "only_one": [],
    }
    whole = replace(RESULT, busy_cores=(0.1, 0.2), calls=calls, facts={"slow": {"a": 1}})
    write_result(file, whole)
    assert read_result(file) == whole


def test_values_are_listed_by_round() -> None:
    assert RESULT.values("slow", "seconds") == [3.0, 3.5]
    assert RESULT.values("slow", "loss") == [0.1, 0.2]
    assert RESULT.values("quick", "loss") == []
    assert RESULT.values("unknown", "seconds") == []
    assert RESULT.values("quick", "peak_rss_mb") == [200.0, 200.0]


def test_complete_result() -> None:
    assert RESULT.is_complete
    assert not replace(RESULT, rounds_wanted=3).is_complete
    empty = result({}, rounds_wanted=5)
    assert empty.is_complete and not empty.rounds


@pytest.mark.parametrize("damage", ["no JSON", "[]", "{}", "a field less", "a run less", "a word"])
def test_other_file_is_refused(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "result.json"
    write_result(file, RESULT)
    content = json.loads(file.read_text())
    if damage == "a field less":
        del content["environment"]
    elif damage == "a run less":
        del content["rounds"][0]["slow"]["seconds"]
    elif damage == "a word":
        content["definition"]["variants"]["slow"]["allocator"] = 7
    file.write_text(json.dumps(content) if damage.startswith("a ") else damage)
    with pytest.raises(InputError, match=r"result\.json: is not a result of .*; move it"):
        read_result(file)
