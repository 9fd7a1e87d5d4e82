"""Each reader, many times, with real inputs that contain hostile fragments."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinanet.config import config_to_tree
from retinanet.config_file import load_config
from tests.fuzz.checkpoints import NAMES, check_checkpoint, checkpoint_files
from tests.fuzz.hostile import mutated, with_another_value
from tests.fuzz.readers import check_annotations, check_config, check_index
from tests.fuzz.seeds import COCO, index_files
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.slow
EXAMPLES = {"annotations": 60, "config": 40, "checkpoint": 20, "image": 40, "index": 60} | {
    "mlperf": 30,
    "topology": 50,
}

quick = settings(suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_reader_returns_a_value_or_raises_an_input_error(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]

    @settings(quick, max_examples=EXAMPLES.get(name, 120))
    @given(mutated(target.seeds()))
    def check(data: bytes) -> None:
        target.check(data, tmp_path)

    check()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_real_inputs_are_accepted(name: str, tmp_path: Path) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].check(seed, tmp_path)


def test_any_value_of_a_configuration(tmp_path: Path) -> None:
    tree = config_to_tree(load_config("demo.yaml"))

    @settings(quick, max_examples=40)
    @given(with_another_value(tree))
    def check(changed: object) -> None:
        check_config(json.dumps(changed).encode(), tmp_path)

    check()


@settings(quick, max_examples=120)
@given(changed=with_another_value(COCO))
def test_any_value_of_annotations(
    changed: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_annotations(json.dumps(changed).encode(), tmp_path_factory.getbasetemp())


@settings(quick, max_examples=50)
@given(changed=with_another_value(json.loads(index_files()["index.json"])))
def test_any_value_of_an_indexs_description(
    changed: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    number = sorted(index_files()).index("index.json")
    content = bytes([number]) + json.dumps(changed).encode()
    check_index(content, tmp_path_factory.getbasetemp())


@settings(quick, max_examples=30)
@given(data=st.data())
def test_any_value_of_a_checkpoints_state(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = json.loads(checkpoint_files()["state.json"])
    changed = data.draw(with_another_value(state))
    content = bytes([NAMES.index("state.json")]) + json.dumps(changed).encode()
    check_checkpoint(content, tmp_path_factory.getbasetemp())


@settings(quick, max_examples=30)
@given(data=st.data())
def test_any_value_of_a_safetensors_header(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = data.draw(st.integers(0, len(NAMES) - 2))
    content = checkpoint_files()[NAMES[place]]
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(data.draw(with_another_value(json.loads(content[8:end])))).encode()
    changed = len(header).to_bytes(8, "little") + header + content[end:]
    check_checkpoint(bytes([place]) + changed, tmp_path_factory.getbasetemp())
