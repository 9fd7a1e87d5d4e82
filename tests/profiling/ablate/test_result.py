"""The plan of an ablation on this machine, and the file of its result."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from common.errors import InputError
from common.files import write_json
from common.machine import fastest_precision
from profiling.ablate import result as result_module
from profiling.ablate.result import (
    JOBS,
    Result,
    lacking,
    read_result,
    resolve_plan,
)
from profiling.bench.interpreters import Interpreter
from profiling.bench.variant import Workload
from tests.profiling.ablate.samples import RECIPE, ablation, result, run

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


CORES = len(os.sched_getaffinity(0))
TOO_MANY = f"requires more than the {CORES} cores available to this process"
ALONE = "none of the variants that it is compared with can run here"


@pytest.mark.parametrize(
    ("impossible", "comparisons", "left_out"),
    [
        ("b", ("b", "c"), {"b": TOO_MANY}),
        ("b", ("b",), {"a": ALONE, "b": TOO_MANY}),
        ("", ("b",), {}),  # c is in no comparison
    ],
)
def test_impossible_variants_and_those_without_counterpart_are_left_out(
    impossible: str, comparisons: tuple[str, ...], left_out: dict[str, str]
) -> None:
    names = ("a", *comparisons) if impossible else ("a", "b", "c")
    variants: dict[str, Any] = {name: {"about": ""} for name in names}
    if impossible:
        variants[impossible]["options"] = {"ranks": 2 * CORES, "threads": 3}
    compared = [{"change": name, "baseline": "a"} for name in comparisons]
    definition = ablation(variants=variants, comparisons=compared)
    plan = resolve_plan("made", definition, size="quick")
    assert plan.left_out == left_out
    assert list(plan.variants) == [name for name in names if name not in left_out]


def test_missing_requirement_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(options: dict[str, str] | None = None, **fields: object) -> str:
        variant = ablation(variants={"slow": {"about": "", **fields}, "quick": {"about": ""}})
        slow = variant.variants["slow"]
        allocator = slow.allocator or "tuned"
        return str(next(lacking(slow, options or {}, allocator=allocator), None))

    assert reason() == "None"
    monkeypatch.setattr(result_module, "cpu_flags", lambda: {"avx512f"})
    assert "amx_bf16 or avx512_bf16" in reason(needs=["bf16"])
    monkeypatch.setattr(result_module, "find", lambda allocator: None)
    assert "apt-get install libjemalloc2" in reason(allocator="jemalloc")
    monkeypatch.setattr(result_module, "pillow_simd_folder", lambda: None)
    assert reason(pillow_simd=True).startswith("Pillow-SIMD is not built")
    assert reason({"decoder": "accimage"}).startswith("accimage is not installed")
    for nodes, expected in (({0}, "requires two memory nodes"), ({0, 1}, "None")):
        allowance = SimpleNamespace(memory_nodes=nodes)
        monkeypatch.setattr(result_module, "read_allowance", lambda allowance=allowance: allowance)
        assert reason(memory="local").startswith(expected)


def test_variants_with_ipex_run_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = Interpreter("/here/.venv-ipex/bin/python", {"python": "3.11.2", "torch": "2.0"})
    monkeypatch.setattr(result_module, "interpreter_with_ipex", lambda: interpreter)
    variants = {"slow": {"about": "", "needs": ["ipex"]}, "quick": {"about": ""}}
    plan = resolve_plan("made", ablation(variants=variants), size="quick")
    slow, quick = plan.variants.values()
    assert (slow.interpreter, quick.interpreter) == (interpreter, None)
    measured = plan.definition["variants"]
    assert measured["slow"]["versions"] == interpreter.versions
    assert "versions" not in measured["quick"]
    # Reports show it.
    done = result({"slow": [run(3.0)], "quick": [run(2.0)]})
    assert done.torch_versions == {}
    definition: Any = {**done.definition, "variants": measured}
    done = replace(done, definition=definition)
    assert done.torch_versions == {"slow": "2.0", "quick": "2.8.0"}
    as_json = TypeAdapter(Result)
    assert as_json.validate_json(as_json.dump_json(done)) == done

    def missing() -> None:
        raise InputError("run `make ipex`")

    monkeypatch.setattr(result_module, "interpreter_with_ipex", missing)
    plan = resolve_plan("made", ablation(variants=variants), size="quick")
    assert plan.left_out == {"slow": "run `make ipex`", "quick": ALONE}


def test_definition_has_no_path_of_this_machine() -> None:
    quick = {"about": "", "huge_pages": True, "allocator": "system"}
    variants = {"slow": {"about": ""}, "quick": quick}
    plan = resolve_plan("made", ablation(variants=variants), size="quick")
    assert str(Path.cwd()) not in str(plan.definition)
    expected = {"recipe": RECIPE, "options": {}, "allocator": "tuned", "pinned": True}
    expected |= {"huge_pages": False, "memory": None, "pillow_simd": False}
    assert plan.definition["variants"]["slow"] == expected


def test_threads_are_pinned_except_in_jobs() -> None:
    plan = resolve_plan("made", ablation(), size="quick")
    assert plan.variants["slow"].environment["OMP_PROC_BIND"] == "close"
    jobs = ablation(recipe=JOBS, options={"ranks": 1, "threads": 1})
    plan = resolve_plan("made", jobs, size="quick")
    assert not plan.variants["slow"].environment
    assert not plan.definition["variants"]["slow"]["pinned"]


def test_result_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "some" / "result.json"
    counts = {"first_calls": 90.0, "second_calls": 80.0, "first_ms": 2.5, "second_ms": 2.0}
    kinds: Any = [{"kind": "convolution forward", **counts}]
    logs = ["slow.log", "quick.log"]
    calls = {"first": "slow", "second": "quick", "logs": logs, "kinds": kinds, "only_one": []}
    whole = replace(RESULT, busy_cores=(0.1, 0.2), calls=calls, facts={"slow": {"a": 1}})
    write_json(file, asdict(whole))
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
    write_json(file, asdict(RESULT))
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
