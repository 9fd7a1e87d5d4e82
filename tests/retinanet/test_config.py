import io
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from common.machine import fastest_precision
from common.yaml_text import read_yaml
from data.annotations import ClassMap, ImageSize
from retinanet import config_file
from retinanet.config import Config, config_to_tree, field_help, field_names, setting_marks
from retinanet.config_file import SHIPPED, config_from_tree, find_config, load_config
from retinanet.config_types import Resume
from retinanet.training.convert import converted_state
from retinanet.training.schedule import StepPlan, learning_rate
from retinanet.training.train_state import SCHEMA
from tests.support.commands import error_message, run_program

SHIPPED_NAMES = sorted(str(path.relative_to(SHIPPED)) for path in SHIPPED.glob("*.yaml"))


def config_error(*overrides: str, config: str = "demo.yaml") -> str:
    return error_message(load_config, config, overrides)


def written(folder: Path, text: str, *, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def as_yaml(config: Config) -> str:
    stream = io.StringIO()
    YAML().dump(config_to_tree(config), stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_shipped_config_has_a_comment_and_survives_a_round_trip(name: str) -> None:
    config = load_config(name)
    assert config.run.name == Path(name).stem
    assert (SHIPPED / name).read_text().startswith("# ")
    assert config_from_tree(config_to_tree(config), "tree") == config
    assert config_from_tree(read_yaml(as_yaml(config), "text"), "text") == config


def test_demo_trains_on_synthetic_data_from_random_weights() -> None:
    config = load_config("demo.yaml")
    assert config.data.scenes is not None and config.data.root is None
    assert (config.model.norm, config.model.trainable_layers) == ("batch", 5)
    assert config.model.pretrained_backbone is None
    assert config.engine.precision == fastest_precision()


def test_coco_and_openimages_have_mlperfs_recipe() -> None:
    coco, openimages = load_config("coco.yaml"), load_config("openimages.yaml")
    for config in (coco, openimages):
        training = config.training
        assert (config.model.norm, config.model.trainable_layers) == ("frozen", 3)
        assert (config.data.image_size, training.learning_rate) == (800, 1e-4)
        assert (training.warmup_epochs, training.warmup_factor) == (1, 1e-3)
        assert training.schedule == "constant"
    assert (coco.data.class_indices, coco.model.num_classes) == ("category_id", 91)
    assert openimages.data.class_indices == "contiguous"
    assert openimages.training.target_map == 0.34


def test_torchvisions_recipe_for_coco() -> None:
    config = load_config("coco-torchvision.yaml")
    coco, training = load_config("coco.yaml"), config.training
    assert (config.data, config.model) == (coco.data, coco.model)
    assert (training.optimizer, training.momentum, training.weight_decay) == ("sgd", 0.9, 1e-4)
    assert training.batch_size * training.gradient_accumulation == 16
    images_with_boxes = 117_266
    plan = StepPlan(
        images_per_epoch=images_with_boxes,
        images_per_batch=training.batch_size,
        gradient_accumulation=training.gradient_accumulation,
        epochs=training.epochs,
        max_steps=training.max_steps,
        evaluate_every=1,
    )
    assert plan.total_steps == 190_554
    rates = {step: learning_rate(training, plan, step) for step in (0, 500, 1000, 16 * 7329 - 1)}
    assert rates == pytest.approx({0: 1e-5, 500: 5.005e-3, 1000: 0.01, 16 * 7329 - 1: 0.01})
    later = {step: learning_rate(training, plan, step) for step in (16 * 7329, 22 * 7329, 190_553)}
    assert later == pytest.approx({16 * 7329: 1e-3, 22 * 7329: 1e-4, 190_553: 1e-4})


def test_shipped_name_is_found_from_any_working_directory_unless_a_path_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "demo.yaml"):
        assert find_config(name) == SHIPPED / "demo.yaml"
        assert load_config(name) == load_config(str(SHIPPED / "demo.yaml"))
    written(tmp_path, "training: {epochs: 77}\n", name="demo.yaml")
    assert load_config("demo.yaml").training.epochs == 77


def test_missing_config_names_the_nearest_one() -> None:
    assert "did you mean demo.yaml?" in error_message(load_config, "dmeo")
    assert "did you mean coco.yaml?" in error_message(load_config, "coco.yml")
    message = error_message(load_config, "elsewhere/nothing")
    assert message.startswith("elsewhere/nothing: ")
    assert all(name in message for name in SHIPPED_NAMES)


def test_overrides_reach_nested_fields_with_their_types() -> None:
    config = load_config(
        "demo.yaml",
        ["data.scenes.train=20", "training.learning_rate=1e-4", "run.name=mine", "run.root=/x"],
    )
    assert config.data.scenes is not None and config.data.scenes.train == 20
    assert config.data.scenes.validation == 150
    assert config.training.learning_rate == 1e-4
    assert isinstance(config.training.learning_rate, float)
    assert (config.run.name, config.run.root) == ("mine", Path("/x"))


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("training.class_weights={Bus: 3}", {"Bus": 3}),
        ("training.class_weights.Bus=3", {"Bus": 3}),
        ("training.beta1=0.5", 0.5),
        ("distributed.batch_split=speed", "speed"),
        ("distributed.batch_split=[3, 1]", (3, 1)),
    ],
)
def test_values_of_several_kinds_survive_a_round_trip(pair: str, value: object) -> None:
    config = load_config("demo.yaml", [pair])
    section, field = pair.partition("=")[0].split(".")[:2]
    assert getattr(getattr(config, section), field) == value
    assert config_from_tree(config_to_tree(config), source="tree") == config
    assert config_from_tree(read_yaml(as_yaml(config), "text"), "text") == config


@pytest.mark.parametrize(
    ("overrides", "field", "part"),
    [
        (
            ["model.trainable_layers=0", "training.body_learning_rate_factor=0.1"],
            "training",
            "model.trainable_layers",
        ),
        (["training.ema=0.99", "engine.name=ipex"], "engine", "training.ema"),
        (["model.variant=v2", "engine.name=ipex"], "engine", "model.variant=v2"),
        (["training.ema=0.99", "distributed.groups=2"], "distributed", "training.ema"),
        (["engine.name=ipex", "engine.precision=bf16", "data.image_size=64"], "engine", "NaN"),
    ],
)
def test_contradicting_sections_are_refused(overrides: list[str], field: str, part: str) -> None:
    message = config_error(*overrides, config="coco.yaml")
    assert message.startswith(f"command line: {field}: ") and part in message


def test_sections_that_go_together_are_accepted() -> None:
    body = ["training.body_learning_rate_factor=0.1", "distributed.groups=2"]
    assert load_config("coco", body).training.body_learning_rate_factor == 0.1
    overrides = ["engine.name=ipex", "engine.precision=bf16", "data.image_size=64"]
    for other in ("engine.precision=float32", "data.image_size=96", "engine.name=torch"):
        assert load_config("coco.yaml", [*overrides, other]).engine.allocator == "tuned"


def test_overrides_may_remove_and_create_sections(tmp_path: Path) -> None:
    config = load_config("demo.yaml", ["data.scenes=null", "training.target_map=null"])
    assert config.data.scenes is None and config.training.target_map is None
    config = load_config(written(tmp_path, "data:\n"), ["data.scenes.train=7", "engine={}"])
    assert config.data.scenes is not None and config.data.scenes.train == 7
    assert load_config("demo", ["run.seed=1", "run.seed=2"]).run.seed == 2  # the last one counts
    assert load_config("demo", ["training.warmup_epochs=2"]).training.warmup_epochs == 2.0


def test_engine_given_as_one_word_is_its_name(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "engine: ipex\n")).engine.name == "ipex"
    assert load_config("demo", ["engine=ipex"]) == load_config("demo", ["engine.name=ipex"])
    for text, override in (
        ("engine: {precision: float32}\n", "engine=torch"),
        ("engine: torch\n", "engine.precision=float32"),
    ):
        engine = load_config(written(tmp_path, text), [override]).engine
        assert (engine.name, engine.precision) == ("torch", "float32")


@pytest.mark.parametrize("name", ["engine", "engine.name"])
def test_unknown_engine_is_refused_with_the_valid_names(name: str, tmp_path: Path) -> None:
    message = config_error(f"{name}=tensorflow")
    assert message.startswith("command line: engine.name: ") and "'tensorflow'" in message
    assert "'auto', 'torch' or 'ipex'" in message
    file = written(tmp_path, "engine: tensorflow\n")
    assert error_message(load_config, file).startswith(f"{file}: engine.name: ")


@pytest.mark.parametrize(
    ("pair", "meant"),
    [
        ("training.batchsize=2", "training.batch_size"),
        ("batch_size=2", "training.batch_size"),
        ("evaluatoin.batch_size=2", "evaluation.batch_size"),
        ("trainng.batch_size=2", "training.batch_size"),
        ("Training.epochs=2", "training.epochs"),
        ("learning_rat=1", "training.learning_rate"),
        ("data.scenes.trian=2", "data.scenes.train"),
        ("data.scenes.valid=2", "data.scenes.validation"),
        ("training.epochs.x=2", "training.epochs"),
    ],
)
def test_misspelt_override_is_refused_with_the_nearest_field(pair: str, meant: str) -> None:
    message = config_error(pair)
    assert message.startswith(f"command line: {pair.partition('=')[0]}: ")
    assert message.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("pair", "name", "advice"),
    [
        ("qqqq=1", "qqqq: ", "--help"),
        ("training.epochs", "", "section.field=value"),
        ("=5", "", "section.field=value"),
        ("", "", "section.field=value"),
        (f"{'.'.join(['a'] * 5_000)}=1", "", "no such field"),
        (f"training.{'.'.join(['a'] * 5_000)}=1", "", "no such field"),
    ],
    ids=["unknown", "no value", "no name", "nothing", "many parts", "many parts of a section"],
)
def test_what_is_no_override_is_refused(pair: str, name: str, advice: str) -> None:
    message = config_error(pair)
    assert message.startswith(f"command line: {name}") and advice in message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("training.batch_size", "two", "integer"),
        ("training.batch_size", '"2"', "integer"),
        ("training.batch_size", "true", "integer"),
        ("training.batch_size", "1.5", "integer"),
        ("training.batch_size", "[1]", "integer"),
        ("training.batch_size", "", "integer"),
        ("training.learning_rate", "fast", "number"),
        ("training.learning_rate", "true", "number"),
        ("training.learning_rate", ".inf", "finite"),
        ("training.learning_rate", ".nan", "finite"),
        ("run.name", "2024", "string"),
        ("run.name", "../elsewhere", "pattern"),
        ("data.root", "5", "string"),
        ("data.scenes", "5", "section"),
        ("data.workers", "-1", "a number from 0 to 4096, or auto"),
        ("data.workers", "many", "a number from 0 to 4096, or auto"),
        ("data.decoder", "fast", "'simplejpeg'"),
        ("data.resize", "crop", "'square' or 'letterbox'"),
        ("data.augmentation", "mirror", "a list such as [flip, photometric], or none"),
        ("data.augmentation", "[flip, flip]", "flip, scale_jitter, photometric, ssd, strong"),
        ("data.augmentation", "[[flip]]", "a list such"),
        ("data.augmentation", "null", "a list such"),
        ("data.on_bad_image", "maybe", "'stop' or 'skip'"),
        ("data", "null", "section"),
        ("model.norm", "batchnorm", "'frozen' or 'batch'"),
        ("training.batch_size", "0", "1"),
        ("training.learning_rate", "0", "0"),
        ("training.target_map", "34", "1"),
        ("training.warmup_epochs", ".inf", "finite"),
        ("model.trainable_layers", "6", "5"),
        *(
            ("data.image_size", value, "a multiple of 32 from 64 to 16384")
            for value in ("100", "32", "true", "480x640", "[480]", "[480, 100]", "[64, 64, 64]")
        ),
        ("data.scenes.train", "0", "1"),
        ("run.seed", "4294967296", "4294967296"),
        ("data.repeat_rare", "0", "greater than 0"),
        ("data.repeat_rare", "1.5", "less than or equal to 1"),
        ("data.repeat_rare", ".nan", "finite"),
        ("training.class_weights", "balance", "balanced, null, or weights by class name"),
        ("training.class_weights", "[3]", "such as {Bus: 3}"),
        ("training.class_weights", "{Bus: 3, Tram: 0}", "the weight of Tram should be from"),
        ("training.class_weights", "{Bus: -1}", "the weight of Bus"),
        ("training.class_weights", "{Bus: .inf}", "the weight of Bus"),
        ("training.class_weights", "{Bus: .nan}", "the weight of Bus"),
        ("training.class_weights", "{Bus: true}", "the weight of Bus"),
    ],
)
def test_invalid_value_is_refused_with_field_expectation_and_value(
    name: str, value: str, expected: str
) -> None:
    message = config_error(f"{name}={value}")
    assert message.startswith(f"command line: {name}: ")
    problem, _, actual = message.partition(", found ")
    assert expected in problem and actual


@pytest.mark.parametrize(
    ("value", "expected"), [("[480, 640]", (480, 640)), ("[640,480]", (640, 480)), ("[96, 96]", 96)]
)
def test_image_size_may_have_two_sides(value: str, expected: ImageSize) -> None:
    config = load_config("demo.yaml", [f"data.image_size={value}"])
    assert config.data.image_size == expected
    assert config_from_tree(config_to_tree(config), "again") == config
    state = converted_state(ClassMap((1,), ("one",)), image_size=expected, resize="letterbox")
    stored = SCHEMA.validate_json(json.dumps(asdict(state)))
    assert stored.model.image_size == expected


@pytest.mark.parametrize("value", ["[", "&a [*a]", "{[1, 2]: 3}", "!!python/name:os.system x"])
def test_override_that_is_not_a_plain_value_is_refused(value: str) -> None:
    message = config_error(f"training.epochs={value}")
    assert message.startswith("command line: training.epochs")


def test_error_in_the_file_names_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "training: {epochs: two}\n")
    message = error_message(load_config, file, ["training.batch_size=3"])
    assert message.startswith(f"{file}: training.epochs: ")
    file = written(tmp_path, "trainig: {epochs: 2}\n")
    assert error_message(load_config, file) == (
        f"{file}: trainig: no such field; did you mean training?"
    )


def test_settings_of_earlier_versions_are_dropped_unless_they_ask_for_something(
    tmp_path: Path,
) -> None:
    text = "evaluation: {metric: faster-coco-eval}\nmlperf: {submission: null}\n"
    config = load_config(str(written(tmp_path, text)))
    tree = config_to_tree(config)
    tree["evaluation"]["metric"], tree["mlperf"]["submission"] = "pycocotools", "out"
    assert config_from_tree(tree, "a checkpoint") == config
    file = written(tmp_path, "mlperf: {submission: out}\n")
    assert error_message(load_config, file) == (
        f"{file}: mlperf.submission: is no setting any more; use retinanet mlperf submission"
    )
    message = error_message(load_config, "demo", ["evaluation.metric=pycocotools"])
    assert message.startswith("command line: evaluation.metric: is no setting any more; use ")


def test_renamed_setting_works_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(config_file.RENAMED, "training.rounds", "training.epochs")
    file = written(tmp_path, "training: {rounds: 7}\n")
    assert load_config(file).training.epochs == 7
    assert capsys.readouterr().err == f"note: {file}: training.rounds is now training.epochs\n"
    assert load_config("demo", ["training.rounds=5"]).training.epochs == 5
    assert capsys.readouterr().err.startswith("note: command line: training.rounds is now ")
    tree = config_to_tree(load_config("demo"))
    tree["training"]["rounds"] = tree["training"].pop("epochs") + 1
    assert config_from_tree(tree, "a checkpoint").training.epochs == 7
    assert capsys.readouterr().err == ""
    file = written(tmp_path, "training: {rounds: 7, epochs: 8}\n")
    assert error_message(load_config, file) == (
        f"{file}: training.rounds: is now training.epochs, which is set too"
    )


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("training:\n  epochs: 2\n  epochs: 3\n", ":3", "duplicate key"),
        ("training:\n\tepochs: 2\n", ":2", "not valid YAML"),
        ("training:\n  epochs: [1\nrun: 2\n", ":3", "not valid YAML"),
        ("training: {}\n---\ndata: {}\n", ":2", "not valid YAML"),
        ("", "", "sections"),
        ("- 1\n", "", "sections"),
        ("just words\n", "", "sections"),
        ("? [1, 2]\n: 3\n", "", "sections"),
        ("training: &a\n  epochs: *a\n", "", "sections"),
        ("run: {name: \udce9}", "", "cannot be read as text"),
    ],
)
def test_what_is_no_configuration_is_refused_with_file_and_line(
    text: str, line: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    message = error_message(load_config, str(file))
    assert message.startswith(f"{file}{line}") and problem in message


MERGES = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
BOMBS = {
    "merge keys": "a0: &a0 {x: 1, y: 2}\n" + MERGES,
    "a long text": "a: &a " + "x" * 50_000 + "\nb: [" + ", ".join(["*a"] * 9_000) + "]\n",
    "within itself": "a: &a [*a]\n",
    "merged into itself": "a: &a {<<: *a}\n",
    "keys": "a0: &a0 [1, 2]\n"
    + "".join(f"? &a{n} [*a{n - 1}, *a{n - 1}]\n: 1\n" for n in range(1, 40)),
    "levels": "".join(f"{' ' * n}a:\n" for n in range(300)),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_yaml_bombs_are_refused_before_they_are_expanded(text: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    program = (
        "import resource, sys\n"
        "from retinanet.config_file import load_config\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "load_config(sys.argv[1])\n"
    )
    done = run_program(sys.executable, "-c", program, file, cwd=SHIPPED.parent, timeout=60)
    *_, last = done.stderr.splitlines()
    assert last.startswith(f"common.errors.InputError: {file}: "), done.stderr[-500:]


def test_a_few_aliases_and_merge_keys_are_accepted(tmp_path: Path) -> None:
    text = "data: {scenes: &s {train: 3}}\nevaluation: &e {every: 2}\n"
    config = load_config(written(tmp_path, text + "checkpoint: {<<: *e, every: epoch, keep: 7}\n"))
    assert (config.checkpoint.every, config.checkpoint.keep, config.evaluation.every) == (
        "epoch",
        7,
        2,
    )


def test_long_value_is_shortened() -> None:
    assert len(config_error(f"training.epochs={'x' * 500}")) < 200


def test_help_lists_every_field_with_a_unit() -> None:
    lines = [line.strip() for line in field_help().splitlines() if line.startswith("  ")]
    for name in field_names():
        [line] = [line for line in lines if line.startswith(f"{name}: ")]
        assert re.search(r"\[.+\]", line), line


def test_marks_of_fields_that_a_resumed_run_must_not_change() -> None:
    marks = setting_marks(Resume)
    assert [name for name, mark in marks.items() if mark is Resume.MUST_MATCH] == [
        "run.seed",
        "data.scenes",
        "data.image_size",
        "data.resize",
        "data.class_indices",
        "data.images_without_boxes",
        "data.repeat_rare",
        "model.norm",
        "model.trainable_layers",
        "model.backbone",
        "model.variant",
        "model.num_classes",
        "training.optimizer",
        "training.momentum",
    ]
    assert marks["evaluation"] is marks["data.root"] is Resume.FREE
    assert marks["training.epochs"] is Resume.LENGTH
    assert "training.learning_rate" not in marks
