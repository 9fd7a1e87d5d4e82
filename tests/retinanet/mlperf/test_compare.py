"""`mlperf compare`: runs beside published logs.

Expected numbers are worked out by hand from the lines of the logs, or with MLCommons' own parser.
"""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from mlperf_logging.compliance_checker.mlp_parser import parse_file
from PIL import Image

from retinanet.__main__ import main
from retinanet.mlperf.commands import Machine, size_of_log
from retinanet.mlperf.compare import labels
from retinanet.mlperf.log import read_run_log
from retinanet.mlperf.timeline import Timeline
from tests.support.commands import RunHere, error_line, run_program
from tests.support.mlperf_runs import closed_config, write_run

COMPARE = ("mlperf", "compare")
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "mlperf"
PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "logs" / "mlperf"
INTEL_NAME, NVIDIA_NAME = "intel-16-nodes-xeon-8480-v3.0.txt", "nvidia-dgx-h100-v3.0.txt"
INTEL, NVIDIA = FIXTURES / INTEL_NAME, FIXTURES / NVIDIA_NAME


def timeline(path: Path, size: Machine | None = None) -> Timeline:
    return Timeline(read_run_log(path), size=size)


def noted(log: Timeline, *parts: str) -> bool:
    """Return whether a note has all these parts."""
    return any(all(part in note for part in parts) for note in log.notes)


def cells(done: CompletedProcess[str], row: str) -> list[str]:
    """Return the cells of a row of the printed table."""
    lines = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    [found] = [line for line in lines if line[0].strip() == row]
    return [cell.strip() for cell in found[1:]]


# Events of a log made by hand


def event(key: str, time: float, value: Any = None, **metadata: Any) -> str:
    """Return the line of an event, `time` in seconds."""
    fields = {"namespace": "", "time_ms": round(1000 * time), "event_type": "", "key": key}
    return f":::MLLOG {json.dumps({**fields, 'value': value, 'metadata': metadata})}"


def epoch(number: int, start: float, stop: float, **steps: int) -> list[str]:
    first, last = steps.get("first"), steps.get("last")
    return [
        event("epoch_start", start, epoch_num=number, step_num=first),
        event("epoch_stop", stop, epoch_num=number, step_num=last),
    ]


def evaluation(number: float, start: float, stop: float, accuracy: object) -> list[str]:
    return [
        event("eval_start", start, epoch_num=number),
        event("eval_accuracy", stop, accuracy, epoch_num=number),
        event("eval_stop", stop, epoch_num=number),
    ]


HEAD = [
    event("submission_benchmark", 0, "retinanet"),
    event("global_batch_size", 0, 10),
    event("init_start", 1),
    event("init_stop", 3),
    event("run_start", 4),
]
END = event("run_stop", 100, status="success")


def write_log(folder: Path, *lines: str, name: str = "a.txt") -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


# Published logs


def test_intels_log_has_the_numbers_of_its_lines() -> None:
    log = timeline(INTEL, Machine(hosts=16, ranks=64, cores=1792))
    # By hand, from the lines' time_ms.
    assert log.initialization == (1683060133601 - 1683060096530) / 1000
    assert log.to_first_step == (1683060173389 - 1683060133721) / 1000 == 39.668
    assert log.epoch_seconds == [3330.104, 3327.919, 3335.688, 3332.765]
    assert log.periods == [3481.759, 3482.791, 3461.388]
    assert log.evaluation_seconds == [151.651, 150.46, 121.721, 132.175]
    assert log.minutes_to_target == pytest.approx((1683074067919 - 1683060133721) / 60_000)
    assert (log.epoch_images, log.dataset_images) == (4571 * 256, 1_170_301)
    speed = 4571 * 256 / ((3330.104 + 3332.765) / 2)
    # Two of four epochs are slower than the median epoch, two are faster.
    assert log.images_per_second == pytest.approx(speed, rel=1e-6)
    assert log.per(log.machine.hosts) == pytest.approx(speed / 16, rel=1e-6)
    assert log.per(log.machine.ranks) == pytest.approx(speed / 64, rel=1e-6)
    assert log.per(log.machine.cores) == pytest.approx(0.196, abs=5e-4)
    assert log.step_seconds == pytest.approx(0.729, abs=5e-4)
    assert (log.target, log.image_size) == (0.34, 800)
    assert noted(log, "4,571 × 256 = 1,170,176", "1,170,301")
    assert noted(log, "ranks 64 = global_batch_size 256 / local_batch_size 4")
    assert noted(log, "rules of the closed division", "800×800")


def test_nvidias_overlapping_evaluation_and_last_part_of_an_epoch_are_recognized() -> None:
    log = timeline(NVIDIA)
    # It starts epoch 5 before it knows that epoch 4 reached the target.
    assert log.epoch_seconds == [529.084, 525.009, 523.898, 519.776]
    assert [item.is_whole for item in log.epochs] == [True] * 4 + [False]
    assert noted(log, "epoch 5", "left out", "4.65 s")
    # An evaluation takes 34 s, of which the next epoch waits 26 s.
    assert log.evaluation_seconds[0] == (1682804313736 - 1682804279629) / 1000
    assert log.periods[0] == (1682804306084 - 1682803750545) / 1000
    assert log.machine == Machine(ranks=8)  # "1xNVIDIA DGX H100" is a name
    assert noted(log, "throughput of 279.3", "× 8 = 2,235 images/s")
    assert log.images_per_second == pytest.approx(2235, rel=0.01)


@pytest.mark.parametrize("folder", [FIXTURES, PUBLISHED], ids=["parts", "whole"])
@pytest.mark.parametrize("name", [INTEL_NAME, NVIDIA_NAME])
def test_numbers_agree_with_mlcommons_parser(folder: Path, name: str) -> None:
    file = folder / name
    if not file.exists():
        pytest.skip("no published logs at ../shared/logs")
    events, errors = parse_file(str(file), ruleset="4.1.0")
    assert not errors

    def times(key: str) -> dict[int | None, float]:
        found = [line for line in events if line.key == key]
        return {line.value["metadata"].get("epoch_num"): line.timestamp for line in found}

    log = timeline(file)
    starts, stops = times("epoch_start"), times("epoch_stop")
    expected = [(stops[number] - starts[number]) / 1000 for number in range(4)]
    assert log.epoch_seconds == pytest.approx(expected)
    begun, ended, [began] = times("eval_start"), times("eval_stop"), times("run_start").values()
    expected = [(ended[number] - begun[number]) / 1000 for number in (1, 2, 3, 4)]
    assert log.evaluation_seconds == pytest.approx(expected)
    assert log.to_first_step == pytest.approx((starts[0] - began) / 1000)
    [stop] = times("run_stop").values()
    assert log.minutes_to_target == pytest.approx((stop - began) / 60_000)
    results = {
        line.value["metadata"]["epoch_num"]: (line.value["value"], line.timestamp)
        for line in events
        if line.key == "eval_accuracy"
    }
    assert [(item.epoch, item.accuracy) for item in log.evaluations] == [
        (number, results[number][0]) for number in (1, 2, 3, 4)
    ]
    minutes = [(results[number][1] - began) / 60_000 for number in (1, 2, 3, 4)]
    assert [item.minutes for item in log.evaluations] == pytest.approx(minutes)


def test_table_chart_and_json_of_published_logs_and_a_run(
    run_here: RunHere, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "demo", closed_config(), accuracies=[0.2, 0.35])
    environment = json.loads((run / "environment.json").read_text())
    environment["ranks"] = {
        "size": 4, "hosts": ["a", "a", "b", "b"], "pinned": True, "cpus_of_rank_0": [0, 1, 2],
        "compute_groups": 1,
    }  # fmt: skip
    (run / "environment.json").write_text(json.dumps(environment))
    chart, numbers = tmp_path / "a.png", tmp_path / "a.json"
    options = ("--size", f"{INTEL}=16x4x28", "--chart", chart, "--json", numbers)
    done = run_here(main, *COMPARE, INTEL, NVIDIA, run, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert cells(done, "hosts") == ["16", "", "2"]
    assert cells(done, "ranks") == ["64", "8", "4"]
    assert cells(done, "cores") == ["1,792", "", "12"]
    assert cells(done, "images/s")[:2] == ["351.3", "2,232"]
    assert cells(done, "images/s a host")[:2] == ["21.95", ""]
    assert cells(done, "images/s a core")[:2] == ["0.196", ""]
    assert cells(done, "evaluation [s]")[0] == "141.3 (121.7–151.7)"
    assert cells(done, "mAP after epoch 2") == ["0.274", "0.295", "0.350"]
    assert cells(done, "mAP after epoch 4") == ["0.344", "0.344", ""]
    assert cells(done, "target mAP") == ["0.34"] * 3
    assert cells(done, "time to the target [min]")[:2] == ["232.2", "36.71"]
    assert "hosts, cores: not in the log; --size LOG=" in done.stdout
    assert "not the same" not in done.stdout
    content = json.loads(numbers.read_text())
    names = [Path(INTEL_NAME).stem, Path(NVIDIA_NAME).stem, "demo"]
    assert [log["name"] for log in content["logs"]] == names
    intel, nvidia, ours = content["logs"]
    assert intel["images_per_second_of_core"] == pytest.approx(0.196, abs=5e-4)
    assert nvidia["hosts"] is None and nvidia["images_per_second_of_host"] is None
    assert (ours["cores"], ours["training_images"], ours["status"]) == (12, 1_170_301, "success")
    assert content["differences"] == []
    with Image.open(chart) as picture:
        assert picture.format == "PNG" and picture.width > 800
    before = numbers.read_bytes()
    again = run_here(main, *COMPARE, INTEL, "--json", numbers)  # never replaces a file
    assert error_line(again).startswith(f"error: {numbers}: exists")
    assert numbers.read_bytes() == before


# What logs count and leave out


def test_google_like_blocks_and_images_are_read(tmp_path: Path) -> None:
    # Blocks of two epochs; train_samples counts images; no local batch size.
    blocks = [
        event(key, time, first_epoch_num=first, epoch_count=2)
        for first, start, stop in ((0, 10, 30), (2, 35, 55))
        for key, time in (("block_start", start), ("block_stop", stop))
    ]
    file = write_log(
        tmp_path, *HEAD, event("train_samples", 4, 1_170_301), *blocks,
        *evaluation(2, 30, 35, 0.3), *evaluation(4, 55, 60, 0.35), END,
    )  # fmt: skip
    log = timeline(file)
    assert [(item.number, item.seconds) for item in log.epochs] == [(2, 10.0), (4, 10.0)]
    assert log.to_first_step == 6
    assert log.images_per_second == pytest.approx(117_030.1)
    assert log.periods == [12.5]
    assert log.machine == Machine()
    assert log.target is None and log.image_size is None  # the division is not in the log


@pytest.mark.parametrize(
    ("samples", "steps", "images", "note"),
    [
        (45, 5, 45, None),  # five steps of 10, the last one of 5 images
        (45, 4, 45, None),  # without the last images
        (5, 5, 50, "5 × 10 = 50 images an epoch, which has 5 steps"),
        (45, None, 45, "45 is taken as images; nothing confirms it"),
        (7, None, 70, "7 × 10 = 70 images an epoch, since a batch has more"),
        (7, 1, 7, None),  # one step of 7 images
    ],
)
def test_train_samples_are_images_or_batches_as_steps_show(
    samples: int, steps: int | None, images: int, note: str | None, tmp_path: Path
) -> None:
    numbers = {} if steps is None else {"first": 0, "last": steps}
    lines = [*HEAD, event("train_samples", 4, samples), *epoch(1, 10, 20, **numbers), END]
    log = timeline(write_log(tmp_path, *lines))
    assert log.epoch_images == images and log.epoch_seconds == [10.0]
    assert any("train_samples" in text for text in log.notes) == (note is not None)
    assert note is None or noted(log, note)


@pytest.mark.parametrize(("samples", "batch"), [(576, 2048), (464, 2528), (571, 2048)])
def test_batches_that_fill_an_epoch_up_are_of_mlperfs_images(
    samples: int, batch: int, tmp_path: Path
) -> None:
    head = [event("global_batch_size", 0, batch), event("train_samples", 4, samples)]
    log = timeline(write_log(tmp_path, *head, *epoch(1, 10, 20), END))
    assert (log.epoch_images, log.dataset_images) == (samples * batch, 1_170_301)
    assert noted(log, f"{samples} × {batch:,} =", "MLPerf's data set has 1,170,301")
    assert log.images_per_second == samples * batch / 10
    stats = event("tracked_stats", 20, {"throughput": samples / 10})
    log = timeline(write_log(tmp_path, *head, *epoch(1, 10, 20), stats, END))
    assert noted(log, "in batches: ×")


def test_part_of_an_epoch_counts_for_speed_only_if_no_epoch_is_whole(tmp_path: Path) -> None:
    start = [*HEAD, event("train_samples", 4, 100)]
    part = [*epoch(2, 25, 30, first=10, last=13), END]
    whole = timeline(write_log(tmp_path, *start, *epoch(1, 10, 20, first=0, last=10), *part))
    assert whole.epoch_seconds == [10.0] and whole.images_per_second == 10
    assert noted(whole, "epoch 2: cut short after 3 of 10 steps, 5 s")
    only = timeline(write_log(tmp_path, *start, *epoch(1, 10, 15, first=0, last=4), END))
    # Nothing but our own logs numbers steps and counts images; a part does not show it.
    assert only.epoch_seconds == [] and only.images_per_second == 8


def test_paused_run_is_noted_and_does_not_change_the_median(tmp_path: Path) -> None:
    epochs = [*epoch(1, 10, 20), *epoch(2, 20, 30), *epoch(3, 30, 3000)]
    log = timeline(write_log(tmp_path, *HEAD, event("train_samples", 4, 1_170_301), *epochs))
    assert log.images_per_second == pytest.approx(117_030.1)
    assert noted(log, "epochs take 10 to 2,970 s", "paused")


def test_throughput_that_differs_from_the_clock_is_noted(tmp_path: Path) -> None:
    stats = event("tracked_stats", 20, {"throughput": 40.0}, epoch_num=1)
    lines = [*HEAD, event("train_samples", 4, 100), *epoch(1, 10, 20, first=0, last=10), stats]
    assert noted(timeline(write_log(tmp_path, *lines)), "throughput of 40", "10 images/s")


def test_target_of_a_run_is_its_configurations(run_here: RunHere, tmp_path: Path) -> None:
    target = closed_config("mlperf.division=open", "training.target_map=0.3")
    without = closed_config("mlperf.division=open", "training.target_map=null")
    runs = [
        write_run(tmp_path / "with", target, accuracies=[0.31]),
        write_run(tmp_path / "below", target, accuracies=[0.29]),
        write_run(tmp_path / "without", without, accuracies=[0.31]),
    ]
    done = run_here(main, *COMPARE, *runs, INTEL)
    assert cells(done, "target mAP") == ["0.3", "0.3", "none", "0.34"]
    assert cells(done, "time to the target [min]")[1:] == ["not reached", "", "232.2"]
    assert "not the same target mAP (0.3: with, below; none: without; 0.34: intel" in done.stdout
    assert "not the same training images" not in done.stdout


def test_other_data_and_image_size_are_named(run_here: RunHere, tmp_path: Path) -> None:
    config = closed_config("mlperf.division=open", "data.image_size=640")
    run = write_run(tmp_path / "small", config, accuracies=[0.35])
    log = run / "mlperf.log"
    log.write_text(log.read_text().replace("1170301", "1000"))
    done = run_here(main, *COMPARE, NVIDIA, run)
    assert "not the same training images (1,170,301: nvidia-dgx-h100-v3.0; 1,000: sm" in done.stdout
    assert "not the same side of the images (800: nvidia-dgx-h100-v3.0; 640: sm" in done.stdout


def test_older_ssd_has_no_target_of_retinanet(tmp_path: Path) -> None:
    lines = [event("submission_division", 0, "closed"), *HEAD, *evaluation(50, 80, 90, 0.23), END]
    log = timeline(write_log(tmp_path, *lines))
    assert log.target is None and noted(log, "0.230", "another model")


# Damage


def without(key: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [line for line in lines if f'"{key}"' not in line]


@pytest.mark.parametrize(
    ("change", "empty", "note"),
    [
        (without("run_stop"), "time to the target [min]", "not in the log: run_stop"),
        (without("run_start"), "time to the first step [s]", "not in the log: run_start"),
        (without("init_start"), "initialization [s]", "not in the log: init_start"),
        (without("train_samples"), "images/s", "not in the log: train_samples"),
        (without("global_batch_size"), "step [s]", "not in the log: global_batch_size"),
        (without("epoch_stop"), "epoch [s]", "epoch 1: left out, it has no stop"),
        (without("eval_stop"), "evaluation [s]", "evaluation after epoch 1: no eval_stop"),
        (without("eval_accuracy"), "mAP after epoch 1", "after epoch 1: no eval_accuracy"),
        (without("submission_benchmark"), "hosts", "not in the log: submission_benchmark"),
        (without("submission_org"), "submitter", ""),
        (without("local_batch_size"), "ranks", "hosts, ranks, cores: not in the log"),
    ],
)
def test_log_without_an_event_has_an_empty_cell_and_a_note(
    *,
    change: Callable[[list[str]], list[str]],
    empty: str,
    note: str,
    run_here: RunHere,
    tmp_path: Path,
) -> None:
    file = write_log(tmp_path, *change(INTEL.read_text().splitlines()))
    done = run_here(main, *COMPARE, file)
    assert (done.returncode, done.stderr) == (0, "")
    assert cells(done, empty) == [""]
    assert note in done.stdout
    assert cells(done, "division") == ["closed"]


@pytest.mark.parametrize("length", [0.1, 0.6, 0.97])
@pytest.mark.parametrize("file", [INTEL, NVIDIA])
def test_log_cut_anywhere_is_read_up_to_there(
    file: Path, length: float, run_here: RunHere, tmp_path: Path
) -> None:
    text = file.read_text()
    cut = tmp_path / "cut.txt"
    cut.write_text(text[: int(length * len(text))])
    done = run_here(main, *COMPARE, cut, "--chart", tmp_path / "a.png")
    assert (done.returncode, done.stderr) == (0, "")
    assert "not in the log" in done.stdout
    whole = run_here(main, *COMPARE, file)
    if length > 0.5:
        assert cells(done, "mAP after epoch 1") == cells(whole, "mAP after epoch 1")
        assert cells(done, "global batch size") == ["256"]
    assert cells(done, "time to the target [min]") == [""]


def test_cut_line_is_ignored_with_its_number(run_here: RunHere, tmp_path: Path) -> None:
    lines = INTEL.read_text().splitlines()
    [place] = [
        number for number, line in enumerate(lines) if '"eval_accuracy", "value": 0.273' in line
    ]
    lines[place] = lines[place][:60]
    done = run_here(main, *COMPARE, write_log(tmp_path, *lines))
    assert cells(done, "mAP after epoch 2") == [""] and cells(done, "mAP after epoch 3") == [
        "0.326"
    ]
    assert f"a: cut or damaged, ignored: line {place + 1}" in done.stdout
    assert "a: evaluation after epoch 2: no eval_accuracy" in done.stdout


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train_samples", "many"), ("train_samples", -3), ("train_samples", 10**400),
        ("global_batch_size", 0), ("global_batch_size", True), ("local_batch_size", 7),
        ("gradient_accumulation_steps", None), ("eval_accuracy", float("nan")),
        ("eval_accuracy", [1]), ("submission_org", {"a": "\x1b[31m"}), ("tracked_stats", 3),
        ("tracked_stats", {"throughput": "x"}), ("first_epoch_num", "0"),
    ],
)  # fmt: skip
def test_value_of_a_wrong_type_is_no_value(
    key: str, value: object, run_here: RunHere, tmp_path: Path
) -> None:
    lines = []
    for line in NVIDIA.read_text().splitlines():
        fields = json.loads(line.removeprefix(":::MLLOG ")) if line else {}
        changed = f":::MLLOG {json.dumps({**fields, 'value': value})}"
        lines.append(changed if fields.get("key") == key else line)
    chart = tmp_path / "a.png"
    done = run_here(main, *COMPARE, write_log(tmp_path, *lines), "--chart", chart)
    assert (done.returncode, done.stderr) == (0, "") and chart.exists()
    assert "\x1b" not in done.stdout


def test_lost_start_of_the_first_epoch_is_not_replaced_by_that_of_the_second(
    run_here: RunHere, tmp_path: Path
) -> None:
    lines = NVIDIA.read_text().splitlines()
    lost = [line for line in lines if '"epoch_start", "value": 0' not in line]
    assert len(lost) == len(lines) - 1
    done = run_here(main, *COMPARE, write_log(tmp_path, *lost))
    assert cells(done, "time to the first step [s]") == [""]
    assert "a: epoch 1: left out, it has no start" in done.stdout


def test_epoch_is_not_cut_short_only_because_the_log_is(tmp_path: Path) -> None:
    # The evaluation of epoch 1 ended in epoch 2, whose own evaluation is lost with the rest.
    lines = NVIDIA.read_text().splitlines()
    [last] = [place for place, line in enumerate(lines) if '"epoch_stop", "value": 1' in line]
    log = timeline(write_log(tmp_path, *lines[: last + 1]))
    assert log.epoch_seconds == [529.084, 525.009]


def test_events_without_an_epoch_are_named(tmp_path: Path) -> None:
    lines = [event("eval_accuracy", 30, 0.3), event("epoch_start", 10), event("eval_start", 20, 1)]
    log = timeline(write_log(tmp_path, *HEAD, *lines))
    assert noted(log, "without the number of an epoch: epoch_start, eval_accuracy")
    assert [item.epoch for item in log.evaluations] == [1]


def test_times_that_run_backwards_are_no_durations(tmp_path: Path) -> None:
    lines = [*HEAD, *epoch(1, 20, 10), *evaluation(1, 2, 3, 0.3), event("run_stop", 1)]
    log = timeline(write_log(tmp_path, *lines))
    assert log.epochs == () and log.evaluations[0].minutes is None
    assert log.minutes_to_target is None
    assert noted(log, "epoch 1: left out, it has no valid stop")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no lines of an MLPerf log"),
        (b"\x00\xff\x80" * 999, "no lines of an MLPerf log"),
        (gzip.compress(INTEL.read_bytes()), "is compressed; unpack it, as by gunzip"),
        (event("submission_benchmark", 0, "bert").encode(), "submission_benchmark is bert"),
        (None, "cannot be read: No such file"),
        (b":::MLLOG [1]\n:::MLLOG {}\n", "no lines of an MLPerf log"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "check"])
def test_file_that_is_no_log_is_an_error_on_one_line(
    command: str, content: bytes | None, reason: str, run_here: RunHere, tmp_path: Path
) -> None:
    file = tmp_path / "a.txt"
    if content is not None:
        file.write_bytes(content)
    done = run_here(main, "mlperf", command, file)
    message = error_line(done)
    assert str(file) in message and reason in message and done.stdout == ""


def test_folder_without_a_log_is_an_error_on_one_line(run_here: RunHere, tmp_path: Path) -> None:
    assert f"{tmp_path}/mlperf.log: cannot be read" in error_line(
        run_here(main, *COMPARE, INTEL, tmp_path)
    )
    assert "given twice" in error_line(run_here(main, *COMPARE, INTEL, INTEL))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"ranks": {"size": "x"}}', '{"ranks": []}'])
def test_damaged_files_beside_a_log_leave_cells_empty(
    content: str, run_here: RunHere, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", closed_config("mlperf.platform=x"), accuracies=[0.35])
    for name in ("environment.json", "config.yaml"):
        (run / name).write_text(content)
    done = run_here(main, *COMPARE, run)
    assert (done.returncode, done.stderr) == (0, "")
    assert cells(done, "ranks") == cells(done, "cores") == [""]


# Options


@pytest.mark.parametrize("command", [(*COMPARE, INTEL), ("mlperf", "points")])
@pytest.mark.parametrize("name", ["a.pdf", "a", "a.png.jpg"])
def test_chart_of_another_format_is_refused(
    command: tuple[str | Path, ...], name: str, run_here: RunHere, tmp_path: Path
) -> None:
    chart = tmp_path / name
    done = run_here(main, *command, "--chart", chart)
    assert done.returncode == 2 and done.stdout == "" and not chart.exists()
    assert "--chart: expected a name that ends in .png or .svg, found " in done.stderr


def test_chart_may_be_svg(run_here: RunHere, tmp_path: Path) -> None:
    chart = tmp_path / "a.svg"
    assert run_here(main, *COMPARE, INTEL, "--chart", chart).returncode == 0
    assert "<svg" in chart.read_text()


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("=16x4", "expected LOG=HOSTSxRANKSxCORES"),
        ("intel.txt", "expected LOG=HOSTSxRANKSxCORES"),
        ("intel.txt=0x4", "expected LOG=HOSTSxRANKSxCORES"),
        ("intel.txt=16x4x28x2", "expected LOG=HOSTSxRANKSxCORES"),
        ("other.txt=16x4x28", "--size: other.txt is none of the logs given"),
        (f"{INTEL}=8x4x28", "--size: 32 ranks in all, but"),
    ],
)
def test_wrong_size_is_an_error(option: str, reason: str, run_here: RunHere) -> None:
    done = run_here(main, *COMPARE, INTEL, "--size", option)
    assert done.returncode == 2 and reason in done.stderr and done.stdout == ""


def test_size_gives_all_of_the_hosts_together() -> None:
    assert size_of_log("a=b.txt=16x4x28") == ("a=b.txt", Machine(hosts=16, ranks=64, cores=1792))
    assert size_of_log("b.txt=1x8") == ("b.txt", Machine(hosts=1, ranks=8))


def test_folder_of_results_is_compared_log_by_log(run_here: RunHere, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"result_{number}.txt").write_text(INTEL.read_text())
    done = run_here(main, *COMPARE, tmp_path, "--size", f"{tmp_path}=16x4x28")
    assert done.returncode == 0 and "┃" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("│ cores ")]
    assert [line.count("1,792") for line in lines] == [4, 2]  # two tables


def test_labels_are_short_and_distinct() -> None:
    paths = ["runs/a/mlperf.log", "x/result_0.txt", "mlperf.log"]
    assert labels(map(Path, paths)) == ["a", "result_0", "mlperf"]
    assert labels(map(Path, ["x/r_0.txt", "y/r_0.txt", "z.txt"])) == ["x/r_0", "y/r_0", "z"]
    assert labels(map(Path, ["/x/a/mlperf.log", "/y/a/mlperf.log"])) == ["x/a", "y/a"]


def test_long_run_shows_some_of_its_evaluations(run_here: RunHere, tmp_path: Path) -> None:
    evaluations = [
        line for number in range(1, 41) for line in evaluation(number, number, number + 0.5, 0.1)
    ]
    file = write_log(tmp_path, *HEAD, *evaluations)
    numbers = tmp_path / "a.json"
    done = run_here(main, *COMPARE, file, "--json", numbers)
    assert done.stdout.count("│ mAP after epoch") == 12
    assert cells(done, "mAP after epoch 1") == cells(done, "mAP after epoch 40") == ["0.100"]
    assert len(json.loads(numbers.read_text())["logs"][0]["evaluations"]) == 40


def test_command_loads_no_torch_and_without_chart_no_matplotlib() -> None:
    program = (
        "import sys; from retinanet.__main__ import main; sys.argv = ['retinanet', 'mlperf', "
        f"'compare', {str(INTEL)!r}]; main(); "
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    done = run_program(sys.executable, "-c", program)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
