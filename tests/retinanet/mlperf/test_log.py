import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.mlperf.log import LogLine, MlperfLog, read_events, running_log
from retinanet.model.retinanet import RetinaNet, current_key, mlperf_key
from tests.support.mlperf_runs import closed_config, write_run


def event_keys(lines: list[LogLine]) -> list[str]:
    """Return the keys of events, with the epoch if there is one."""
    epochs = [line.metadata.get("epoch_num") for line in lines]
    return [
        line.key if epoch is None else f"{line.key} {epoch}"
        for line, epoch in zip(lines, epochs, strict=True)
    ]


def write_log(config: Config, file: Path, *, step: int, is_evaluated: bool = True) -> list[LogLine]:
    """Log a start with one step and an evaluation; return all events of the file."""
    with running_log(config, group=ProcessGroup(), local_rank=0) as log:
        log.write_to(file, step=step, is_evaluated=is_evaluated)
        log.evaluation_started(epoch=step + 1, step=step + 1)
        log.evaluated(0.1, epoch=step + 1, step=step + 1)
    return read_events(file)


def epoch_events(epoch: int) -> list[str]:
    names = "epoch_start", "tracked_stats", "epoch_stop", "eval_start", "eval_accuracy", "eval_stop"
    return [f"{name} {epoch}" for name in names]


def test_events_have_mlperfs_order_with_data_after_run_start(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", closed_config(), accuracies=[0.2, 0.35])
    lines = read_events(run / "mlperf.log")
    keys = event_keys(lines)
    begin = ["init_start", "cache_clear", "init_stop", "run_start", "train_samples", "eval_samples"]
    assert [key for key in keys if key in begin] == begin
    assert keys[-13:] == [*epoch_events(1), *epoch_events(2), "run_stop"]
    assert lines[-1].metadata["status"] == "success"
    values = {line.key: line.value for line in lines}
    assert values["tracked_stats"] == {"throughput": 128.0}
    assert (values["global_batch_size"], values["gradient_accumulation_steps"]) == (256, 128)
    assert (values["train_samples"], values["eval_samples"]) == (1_170_301, 24_781)
    assert (values["opt_adam_beta_2"], values["opt_adam_epsilon"]) == (0.999, 1e-8)
    times = [line.time_ms for line in lines]
    assert times == sorted(times)
    assert not any(line.metadata["file"].startswith("/") for line in lines)


def test_resumed_run_has_one_start_one_end_and_each_evaluation_once(tmp_path: Path) -> None:
    config, file = closed_config(), tmp_path / "mlperf.log"
    write_log(config, file, step=0)
    first = write_log(config, file, step=1)
    evaluations = epoch_events(1)[3:] + epoch_events(2)[3:]
    assert [key for key in event_keys(first) if key.startswith("eval")] == evaluations
    for key in ("init_start", "run_start", "seed", "run_stop", "opt_name", "cache_clear"):
        assert event_keys(first).count(key) == 1, key
    # Resume again from step 1, whose evaluation is not in the checkpoint.
    again = write_log(config, file, step=1, is_evaluated=False)
    keys = ("eval_accuracy 1", "eval_accuracy 2", "run_stop")
    assert [event_keys(again).count(key) for key in keys] == [0, 1, 1]
    # The clock starts at the first start.
    starts = [line.time_ms for line in first + again if line.key == "run_start"]
    assert len(starts) == 2 and starts[0] == starts[1]


def test_repeated_epochs_are_logged_once(tmp_path: Path) -> None:
    file = tmp_path / "mlperf.log"
    for step in (0, 8):
        with running_log(closed_config(), group=ProcessGroup(), local_rank=0) as log:
            log.write_to(file, step=step, is_evaluated=True)
            for epoch in range(step // 4 + 1, step // 4 + 4):
                log.epoch_started(epoch, step=4 * epoch - 4)
                log.epoch_stopped(epoch, step=4 * epoch)
    epochs = [key for key in event_keys(read_events(file)) if key.startswith("epoch_")]
    expected = [f"epoch_{what} {epoch}" for epoch in range(1, 6) for what in ("start", "stop")]
    assert epochs == expected


def test_setting_changed_on_resume_is_logged_again(tmp_path: Path) -> None:
    file = tmp_path / "mlperf.log"
    write_log(closed_config(), file, step=0)
    lines = write_log(closed_config("training.gradient_accumulation=64"), file, step=1)
    assert [line.value for line in lines if line.key == "global_batch_size"] == [256, 128]


def test_truncated_line_is_removed_on_resume(tmp_path: Path) -> None:
    file = tmp_path / "mlperf.log"
    write_log(closed_config(), file, step=0)
    text = file.read_text()
    file.write_text(text[: text.rindex("run_stop") + 4])
    assert event_keys(write_log(closed_config(), file, step=1)).count("run_stop") == 1
    assert all(line.startswith(":::MLLOG {") for line in file.read_text().splitlines())


def test_run_that_ends_with_an_error_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (None, tmp_path / "mlperf.log"):  # without a folder nothing is written
        assert list(tmp_path.iterdir()) == []
        with (
            pytest.raises(RuntimeError),
            running_log(closed_config(), group=ProcessGroup(), local_rank=0) as log,
        ):
            if file:
                log.write_to(file, step=0, is_evaluated=False)
            raise RuntimeError
    last = read_events(tmp_path / "mlperf.log")[-1]
    assert (last.key, last.metadata["status"]) == ("run_stop", "aborted")


def test_full_disk_loses_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MlperfLog()
    file = tmp_path / "mlperf.log"
    log.write_to(file, step=0, is_evaluated=False)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("os.write", refuse)
        log.event("seed", 1)
        log.event("seed", 2)
    assert file.read_text() == ""
    log.event("seed", 3)
    log.close()
    assert [line.value for line in read_events(file)] == [1, 2, 3, None]


def test_tensors_have_the_names_of_the_reference() -> None:
    rules = files("mlperf_logging") / "compliance_checker/training_2.1.0/closed_ssd.yaml"
    expected = set(re.findall(r'"(module\.[^"]+)"', rules.read_text()))
    assert len(expected) == 89
    model = RetinaNet(num_classes=264, norm="frozen", trainable_layers=3)
    assert {mlperf_key(name) for name, _ in model.named_parameters()} == expected
    keys = model.state_dict().keys()
    assert {current_key(mlperf_key(key)) for key in keys} == set(keys)


def test_page_cache_is_dropped_only_if_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / "drop_caches"
    switch.write_text("0\n")
    monkeypatch.setattr("retinanet.mlperf.log.DROP_CACHES", switch)
    for overrides, value, text in (([], False, "0\n"), (["mlperf.clear_caches=true"], True, "3\n")):
        lines = write_log(load_config("demo.yaml", overrides), tmp_path / f"{value}.log", step=0)
        assert [line.value for line in lines if line.key == "cache_clear"] == [value]
        assert switch.read_text() == text


@pytest.mark.parametrize(
    ("rules", "name"), [("5.1.0", "retinanet"), ("4.1.0", "ssd"), ("2.1.0", "ssd")]
)
def test_benchmark_is_named_ssd_in_older_rules(rules: str, name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", closed_config(f"mlperf.rules={rules}"), accuracies=[0.4])
    first = (run / "mlperf.log").read_text().splitlines()[0]
    assert json.loads(first.removeprefix(":::MLLOG "))["value"] == name
