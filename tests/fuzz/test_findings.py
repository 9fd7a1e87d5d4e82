"""Findings of fuzzing and review. Each was a traceback, took minutes or gigabytes, or was accepted
silently.
"""

import io
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from data.annotations import ClassMap, TrainingRules
from data.coco_json import read_annotations
from data.dataset import DetectionDataset, make_class_map
from data.decoding import decode_image
from data.formats.labels import read_class_names, read_list
from data.index import open_annotations, open_index
from data.openimages.boxes import resolve_classes
from launch.hosts import expand_hosts, read_hostfile
from launch.limits import cpus_of_job, read_memory_nodes, read_quota
from launch.ranks import read_ranks
from launch.rendezvous import master_rendezvous, slurm_rendezvous
from launch.topology import read_topology
from profiling.onednn_log.log import read_logs
from profiling.sums import sum_by_problem
from retinanet.config_file import load_config
from retinanet.training.train_state import rank_states
from tests.fuzz.inputs import write_file
from tests.fuzz.seeds import COCO, LSCPU, index_files

MATMUL = (
    "onednn_verbose,v1,primitive,exec,cpu,matmul,brg,undef,src:f32::blocked:ab::f0 "
    "wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,,{shape},0.5\n"
)
CONVOLUTION = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,brg,forward_training,"
    "src:f32::blocked:acdb::f0 wei:f32::blocked:acdb::f0 dst:f32::blocked:acdb::f0,,"
    "alg:convolution_direct,{shape},0.5\n"
)


SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NODEID": "0"}
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
JOB = {"SLURM_STEP_NODELIST": "a", "SLURM_JOB_ID": "²"}
COUNTS = {"SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "2(x99999999999)"}
PORTS = ["²", "0", "65536", "-1", "9" * 5000, ""]
ADDRESSES = ["300.300.300.300", "a" * 300, "a\0b", "a..b", "\udc80"]


@pytest.mark.parametrize(
    ("read", "variables", "named"),
    [
        (read_ranks, {"PMI_RANK": "0", "PMI_SIZE": "9" * 5000}, "PMI_SIZE="),
        (read_ranks, {"RANK": "0", "WORLD_SIZE": "1" + "0" * 12}, "WORLD_SIZE="),
        (read_ranks, SLURM | COUNTS, "SLURM_TASKS_PER_NODE="),
        (cpus_of_job, {"SLURM_JOB_CPUS_PER_NODE": "4(x0)"}, "SLURM_JOB_CPUS_PER_NODE="),
        (slurm_rendezvous, JOB, "SLURM_JOB_ID"),
        *((master_rendezvous, ADDRESS | {"MASTER_PORT": port}, "MASTER_PORT: ") for port in PORTS),
        *((master_rendezvous, ADDRESS | {"MASTER_ADDR": a}, "MASTER_ADDR: ") for a in ADDRESSES),
    ],
    ids=itertools.count(),
)
def test_bad_variable_of_a_launcher_is_named(
    read: Callable[[dict[str, str]], object], variables: dict[str, str], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        read(variables)


@pytest.mark.parametrize(
    "line",
    ["-oProxyCommand", "-F/a", "node1:00", "node1:9999999", "node1:" + "9" * 5000, "ho\x1bst"],
)
def test_a_hostfiles_line_that_could_harm_is_refused(line: str, tmp_path: Path) -> None:
    file = write_file(tmp_path / "hosts", line.encode())
    with pytest.raises(InputError, match="hosts:1: ") as caught:
        read_hostfile(file)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("hosts", ["[0-999999]", "a[0-99999],b[0-99999]", "-F/tmp/other"])
def test_a_list_of_hosts_is_bounded(hosts: str) -> None:
    with pytest.raises(InputError):
        expand_hosts(hosts)


@pytest.mark.parametrize("limit", ["² 100000", "9" * 5000 + " 1", "100000 0"])
def test_a_quota_that_is_no_number_is_none(limit: str, tmp_path: Path) -> None:
    write_file(tmp_path / "cgroup", b"0::/\n")
    write_file(tmp_path / "cpu.max", limit.encode())
    assert read_quota(process=tmp_path, cgroups=tmp_path) is None


def test_memory_nodes_that_are_no_list_are_none(tmp_path: Path) -> None:
    status = write_file(tmp_path / "status", b"Mems_allowed_list:\tall\n")
    assert read_memory_nodes(status) == frozenset()


def test_a_copy_of_sysfs_may_hold_anything(tmp_path: Path) -> None:
    for name in ("cpu/cpu1/topology/physical_package_id", "node/node0x/cpulist"):
        write_file(tmp_path / name, b"0")
    for name in ("cpu/online", "cpu/cpu1/topology/thread_siblings_list"):
        write_file(tmp_path / name, b"1")
    assert [cpu.cpu for cpu in read_topology(tmp_path).cpus] == [1]
    write_file(tmp_path / "cpu/online", b"\n")
    with pytest.raises(InputError, match="no CPU is online"):
        read_topology(tmp_path)
    write_file(tmp_path / "cpu/online", b"0-99999," * 10_000 + b"1")
    with pytest.raises(InputError, match="more than 8,192 CPUs"):
        read_topology(tmp_path)
    assert len(read_topology(write_file(tmp_path / "lscpu", LSCPU)).cpus) == 4


def test_another_programs_verbose_lines_are_passed_over(tmp_path: Path) -> None:
    text = "other_verbose,1\n" + MATMUL.format(shape="4x5:5x6") + "_verbose,\n"
    log = read_logs([write_file(tmp_path / "a.log", text.encode())])
    assert (log.onednn_lines, log.not_understood_count) == (1, 0)


@pytest.mark.parametrize(
    "line",
    [
        CONVOLUTION.format(shape="mb2_g0ic64oc64_ih9oh9kh3_iw9ow9kw3"),
        MATMUL.format(shape=f"{'9' * 400}x5:5x6"),  # more than a float holds
        MATMUL.format(shape=f"{'9' * 5000}x5:5x6"),  # more digits than are read
    ],
    ids=itertools.count(),
)
def test_work_that_cannot_be_counted_is_not(line: str, tmp_path: Path) -> None:
    [row] = sum_by_problem(read_logs([write_file(tmp_path / "a.log", line.encode())]).calls())
    assert row.gflop is None and row.calls == 1


@pytest.mark.parametrize(
    "line",
    ['profilednn_facts,{"a":' + "[" * 5000, "profilednn_mark,nan,begin,1"],
    ids=["nested too deep", "not a time"],
)
def test_a_line_of_ours_that_is_broken_is_counted(line: str, tmp_path: Path) -> None:
    text = line + "\n" + MATMUL.format(shape="4x5:5x6")
    log = read_logs([write_file(tmp_path / "a.log", text.encode())])
    assert log.not_understood_count == 1 and not log.facts and not log.phase_ms


def test_a_value_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    for depth in (500, 990, 5000, 200_000):
        deep = b'{"images": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
        with pytest.raises(InputError):
            read_annotations(write_file(tmp_path / "a.json", deep))


def test_category_ids_that_would_need_a_billion_outputs_are_refused(tmp_path: Path) -> None:
    content = {**COCO, "annotations": [], "categories": [{"id": 2**62, "name": "far"}]}
    annotations = read_annotations(write_file(tmp_path / "a.json", json.dumps(content).encode()))
    with pytest.raises(InputError, match=r"data\.class_indices=contiguous"):
        make_class_map(
            annotations, TrainingRules(image_size=64, class_indices="category_id"), source="a.json"
        )


MANY = 100_000  # Classes: one more than a model may have


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        (
            "classes.txt",
            "\n".join,
            lambda file: read_class_names(file, read_list(file)),
        ),
        (
            "classes.csv",
            lambda names: "".join(f"/m/{name},{name}\n" for name in names),
            lambda file: resolve_classes(["all"], file),
        ),
        (
            "a.json",
            lambda names: json.dumps(
                COCO | {"categories": [{"id": int(n), "name": n} for n in names]}
            ),
            read_annotations,
        ),
        (
            "state.json",
            lambda names: json.dumps({"category_ids": [*map(int, names)], "names": names}),
            lambda file: ClassMap.from_json(json.loads(file.read_text())),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_more_classes_than_a_model_has_are_refused(
    name: str,
    content: Callable[[list[str]], str],
    read: Callable[[Path], object],
    tmp_path: Path,
) -> None:
    file = write_file(tmp_path / name, content([str(number) for number in range(MANY)]).encode())
    with pytest.raises(InputError, match="has more than 99,999 classes"):
        read(file)


def index_with(folder: Path, **changes: bytes) -> Path:
    for name, content in index_files().items():
        write_file(folder / "index" / name, content)
    for name, content in changes.items():
        write_file(folder / "index" / f"{name}.npy", content)
    return folder / "index"


def array(values: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(values, dtype=kind), allow_pickle=True)
    return buffer.getvalue()


HEIGHTS = index_files()["heights.npy"]


@pytest.mark.parametrize(
    ("column", "content"),
    [
        ("box_offsets", array([0, 10**12, 3], "int64")),
        ("box_offsets", array([0, 2, 1], "int64")),
        ("file_names_starts", array([0, -1, 12], "int64")),
        ("boxes", array([1, 2, 3], "float64")),
        ("widths", array([1.5, 2.5], "float64")),
        ("image_ids", array([{"a": 1}, 2], "object")),
        ("heights", HEIGHTS.replace(b"(2,), }", b"(2,,,(( ")),
        ("heights", HEIGHTS.replace(b"(2,)", b"(9999999999,)")),
    ],
    ids=itertools.count(),
)
def test_an_index_whose_columns_do_not_fit_is_refused(
    column: str, content: bytes, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="damaged index"):
        open_index(index_with(tmp_path, **{column: content}))


@pytest.mark.parametrize(
    "description",
    [b'{"format": 3}', b'{"format": 3, "categories": [], "images": 2, "boxes": 3}', b"[" * 10**5],
    ids=itertools.count(),
)
def test_a_damaged_description_of_an_index_is_refused(description: bytes, tmp_path: Path) -> None:
    folder = index_with(tmp_path)
    write_file(folder / "index.json", description)
    with pytest.raises(InputError, match=r"index\.json"):
        open_index(folder)


@pytest.mark.parametrize("name", [7, "../elsewhere", "/tmp", "..", "a\0b", ["x"]])
def test_the_current_index_is_one_in_its_folder(name: object, tmp_path: Path) -> None:
    current = {"index": name, "size": 1, "modified_ns": 1}
    write_file(tmp_path / "a.json.index" / "current.json", json.dumps(current).encode())
    with pytest.raises(InputError, match="neither a JSON file nor an index"):
        open_annotations(tmp_path / "a.json.index")


def test_a_name_in_an_index_may_be_anything(tmp_path: Path) -> None:
    files = index_files()["file_names.npy"]
    assert files.endswith(b"a/1.jpg2.png")
    index = open_index(index_with(tmp_path, file_names=files[:-12] + b"\xff/1.jpg2.png"))
    assert list(index.file_names) == ["�/1.jpg", "2.png"]
    index = open_index(index_with(tmp_path, file_names=files[:-12] + b"../1jpg2.png"))
    classes = ClassMap.contiguous(index.category_ids, index.category_names)
    with pytest.raises(InputError, match=r'file_name "\.\./1jpg": is outside of'):
        DetectionDataset(index, tmp_path, classes, TrainingRules(image_size=64), train=True)


@pytest.mark.parametrize("read", [decode_image, open_annotations])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read(tmp_path / "pipe")


def test_a_line_of_pixels_longer_than_any_pictures_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1)).save(tmp_path / "line.bmp")
    data = bytearray((tmp_path / "line.bmp").read_bytes())
    data[22:26] = (150_000_000).to_bytes(4, "little")
    with pytest.raises(InputError, match="65535"):
        decode_image(write_file(tmp_path / "line.bmp", bytes(data)))


@pytest.mark.parametrize(
    ("pair", "named"),
    [
        ("distributed.timeout_s=1e300", "distributed.timeout_s"),
        ("model.num_classes=1000000000000", "model.num_classes"),
        ("data.scenes.train=1000000000000", "data.scenes.train"),
        ("data.workers=1000000", "data.workers"),
        ("training.epochs=" + "9" * 5000, "training.epochs"),
        ("data={a: &a [1], b: " + "[" * 3000, "data"),
        ("run.name=../../x", "run.name"),
        ('run.name="a\\n"', "run.name"),
    ],
    ids=lambda text: text[:24],
)
def test_settings_that_no_run_could_have_are_refused(pair: str, named: str) -> None:
    with pytest.raises(InputError, match=f"command line: {named}: "):
        load_config("demo.yaml", [pair])


def test_a_billion_laughs_are_refused_in_time(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    begin = time.monotonic()
    with pytest.raises(InputError):
        load_config(str(write_file(tmp_path / "a.yaml", "\n".join(lines).encode())))
    assert time.monotonic() - begin < 2


def test_a_tensor_of_a_rank_with_thousands_of_digits_is_nobodys() -> None:
    assert rank_states([{}], {"9" * 5000 + "/a": None})[0].statistics == {}  # type: ignore[dict-item]
