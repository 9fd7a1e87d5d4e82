import os
from pathlib import Path

import pytest

from common.machine import fastest_precision
from profiling.ablate import result as plan_module
from profiling.ablate.result import JOBS, lacking, resolve_plan
from profiling.bench.variant import Workload
from tests.profiling.ablate.made import ablation


def test_options_of_a_variant_win_over_those_of_the_size_and_of_all() -> None:
    one = ablation(
        options={"wait": 0.3, "precision": "auto"},
        quick={"options": {"wait": 0.2}, "rounds": 3},
        variants={
            "slow": {"about": "", "options": {"wait": 0.1}},
            "quick": {"about": "", "allocator": "system"},
        },
    )
    plan = resolve_plan("made", one, size="quick")
    slow, quick = plan.variants.values()
    assert (slow.options["wait"], quick.options["wait"]) == (0.1, 0.2)
    assert slow.options["precision"] == fastest_precision()
    assert (slow.allocator, quick.allocator) == ("tuned", "system")
    assert plan.rounds == 3
    assert resolve_plan("made", one, size="full").variants["quick"].options["wait"] == 0.3


def test_sizes_and_rounds_are_the_usual_ones_unless_told() -> None:
    quick = resolve_plan("made", ablation(), size="quick")
    assert quick.workload == Workload(images=1, image_size=320, classes=264)
    assert (quick.rounds, quick.warm_up) == (8, 2)
    full = resolve_plan("made", ablation(full={"warm_up": 0}), size="full", rounds=9)
    assert full.workload == Workload(images=2, image_size=800, classes=264)
    assert (full.rounds, full.warm_up) == (9, 0)


def test_a_variant_that_lacks_something_is_left_out_with_the_reason() -> None:
    cores = len(os.sched_getaffinity(0))
    one = ablation(
        variants={
            "one": {"about": ""},
            "two": {"about": "", "options": {"ranks": 2 * cores, "threads": 3}},
            "three": {"about": ""},
        },
        comparisons=[{"change": "two", "baseline": "one"}, {"change": "three", "baseline": "one"}],
    )
    plan = resolve_plan("made", one, size="quick")
    assert list(plan.variants) == ["one", "three"]
    assert plan.left_out == {
        "two": f"requires more than the {cores} cores available to this process"
    }


def test_nobody_runs_alone_whose_counterpart_cannot() -> None:
    one = ablation(
        variants={"slow": {"about": ""}, "quick": {"about": "", "options": {"ranks": 10**6}}}
    )
    plan = resolve_plan("made", one, size="quick")
    assert not plan.variants
    assert plan.left_out["slow"] == "none of the variants that it is compared with can run here"


def test_who_is_only_drawn_runs_too() -> None:
    variants = {name: {"about": ""} for name in ("slow", "quick", "other")}
    assert list(resolve_plan("made", ablation(variants=variants), size="quick").variants) == [
        "slow",
        "quick",
        "other",
    ]


def without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "cpu_flags", lambda: {"avx512f"})


def test_what_is_missing_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(options: dict[str, str] | None = None, **fields: object) -> str | None:
        variant = ablation(variants={"slow": {"about": "", **fields}, "quick": {"about": ""}})
        one = variant.variants["slow"]
        return lacking(one, options or {}, allocator=one.allocator or "tuned")

    assert said() is None
    without_bf16(monkeypatch)
    assert said(needs=["bf16"]) == (
        "the processor has no instructions for BF16 (amx_bf16 or avx512_bf16)"
    )
    monkeypatch.setattr(plan_module, "find", lambda allocator: None)
    assert said(allocator="jemalloc") == (
        "jemalloc is not installed (apt-get install libjemalloc2)"
    )
    monkeypatch.setattr(plan_module, "pillow_simd_folder", lambda: None)
    assert "./setup.sh simd-beside" in str(said(pillow_simd=True))
    assert str(said({"decoder": "accimage"})).startswith("accimage is not installed")


def test_a_second_memory_node_is_missing_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variant = ablation(variants={"slow": {"about": "", "memory": "local"}, "quick": {"about": ""}})

    class Allowance:
        memory_nodes = frozenset({0})

    monkeypatch.setattr(plan_module, "read_allowance", Allowance)
    said = lacking(variant.variants["slow"], {}, allocator="tuned")
    assert said == "requires two memory nodes (two sockets), this machine has 1"
    Allowance.memory_nodes = frozenset({0, 1})
    assert lacking(variant.variants["slow"], {}, allocator="tuned") is None


def test_a_definition_names_no_place_of_this_machine() -> None:
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


def test_openmps_threads_are_pinned_and_jobs_pin_themselves() -> None:
    plan = resolve_plan("made", ablation(), size="quick")
    assert plan.variants["slow"].environment["OMP_PROC_BIND"] == "close"
    jobs = ablation(recipe=JOBS, options={"ranks": 1, "threads": 1})
    plan = resolve_plan("made", jobs, size="quick")
    assert not plan.variants["slow"].environment
    assert not plan.definition["variants"]["slow"]["pinned"]
