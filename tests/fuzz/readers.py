"""Functions that call a reader with bytes; they raise if the reader misbehaves."""

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from data.coco_json import read_annotations
from data.decoding import decode_image, installed_decoders
from data.index import open_index
from data.openimages.boxes import (
    parse_names,
    parse_numbers,
    read_class_descriptions,
    read_image_ids,
    read_lines,
)
from launch.hosts import Host, expand_hosts, hosts_with_ranks, ranks_of_hosts, read_hostfile
from launch.limits import cpus_of_job, read_memory_nodes, read_quota, slurm_affinities
from launch.ranks import Ranks, read_ranks
from launch.rendezvous import master_port, slurm_rendezvous
from launch.topology import describe_sockets, list_sockets, read_topology
from profiling.onednn_log.log import read_logs
from profiling.sums import sum_by_problem
from retinanet.config import Config, config_to_tree
from retinanet.config_file import config_from_tree, load_config
from retinanet.mlperf.commands import CheckOptions, CompareOptions, RcpOptions
from retinanet.mlperf.compare import compare
from retinanet.mlperf.log import truncate_log
from retinanet.mlperf.official import FEWEST, check, rcp
from tests.fuzz.inputs import value_or_error, write_file
from tests.fuzz.seeds import index_files

CUT = b"\x00\x00"
"""Separator between the parts of an input."""


def check_config(data: bytes, folder: Path) -> None:
    """Read a YAML file, then `section.field=value` pairs."""
    text, *pairs = data.split(CUT)
    file = write_file(folder / "fuzzed.yaml", text)
    overrides = [pair.decode("utf-8", "surrogateescape") for pair in pairs]
    config = value_or_error(lambda: load_config(str(file), overrides), str(file), "command line")
    if config is not None:
        assert isinstance(config, Config)
        assert config_from_tree(config_to_tree(config), "again") == config


def check_annotations(data: bytes, folder: Path) -> None:
    """Read a COCO-format JSON file."""
    file = write_file(folder / "fuzzed.json", data)
    content = value_or_error(lambda: read_annotations(file), str(file))
    if content is not None:
        assert len(content.file_names) == len(content) == len(content.box_offsets) - 1
        assert np.isfinite(content.boxes).all()
        content.images_with_objects()


def check_index(data: bytes, folder: Path) -> None:
    """Read an index with one file replaced: the number of the file, then its content."""
    names = sorted(index_files())
    index = folder / "fuzzed.index"
    if not index.exists():
        for name in names:
            write_file(index / name, index_files()[name])
    changed = names[data[0] % len(names)] if data else names[0]
    write_file(index / changed, data[1:])
    content = value_or_error(lambda: open_index(index), str(index))
    if content is not None:
        assert all(isinstance(name, str) for name in (*content.file_names, *content.category_names))
        assert [content.boxes[content.box_slice(row)].shape[1] for row in range(len(content))]
        content.images_with_objects()
    write_file(index / changed, index_files()[changed])


def check_openimages(data: bytes, folder: Path) -> None:
    """Read the CSV files of boxes and of classes and a list of images, all with the same bytes."""
    file = write_file(folder / "fuzzed.csv", data)
    labels = {"/m/cat": 0, "/m/dog": 1}
    columns = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax", *FLAG_COLUMNS)

    def read_boxes() -> None:
        for lines in read_lines(file, columns=columns, advance=lambda done, note: None):
            ids, indices = parse_names(lines, labels)
            corners, flags = parse_numbers(lines)
            assert len(ids) == len(indices) == len(corners) == len(flags) == len(lines.texts)

    for read in (read_boxes, lambda: read_class_descriptions(file), lambda: read_image_ids(file)):
        value_or_error(read, str(file))


FLAG_COLUMNS = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")


def check_image(data: bytes, folder: Path) -> None:
    """Read an image file, with every installed decoder, with and without EXIF rotation."""
    file = write_file(folder / "fuzzed.image", data)
    for decoder, upright in itertools.product(installed_decoders(), (False, True)):
        read = partial(decode_image, file, decoder=decoder, apply_exif_orientation=upright)
        pixels = value_or_error(read, str(file))
        if pixels is not None:
            assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3


def check_log(data: bytes, folder: Path) -> None:
    """Read oneDNN's log, up to the rows of its table."""
    file = write_file(folder / "fuzzed.log", data)
    log = value_or_error(lambda: read_logs([file]), str(file))
    if log is not None:
        assert sum(row.calls for row in sum_by_problem(log.calls())) > 0
        assert log.ranks == sorted(log.ranks) and log.steps == sorted(log.steps)


def check_mlperf_log(data: bytes, folder: Path) -> None:
    """Read a run's `mlperf.log`: official checkers, comparison, and the log of a resumed run."""
    file = write_file(folder / "mlperf.log", data)
    value_or_error(lambda: compare(CompareOptions(runs=[file])), str(file))
    value_or_error(lambda: check(CheckOptions(path=file)), str(file))
    copies = [write_file(folder / f"{number}.log", data) for number in range(FEWEST)]
    value_or_error(lambda: rcp(RcpOptions(runs=copies)), str(folder))
    remaining = truncate_log(file, step=3, is_evaluated=False)
    assert [line.text for line in remaining] == file.read_text(encoding="utf-8").splitlines()


def check_hosts(data: bytes, folder: Path) -> None:
    """Read a hostfile, and the same text as `--hosts`."""
    file = write_file(folder / "hosts", data)
    hosts: tuple[Host, ...] | None = value_or_error(lambda: read_hostfile(file), str(file))
    if hosts is not None:
        assert hosts and all(not host.name.startswith("-") for host in hosts)
        value_or_error(lambda: ranks_of_hosts(hosts, ranks=4), "--np", "--hosts", "hosts")
    text = data.decode("utf-8", "surrogateescape")
    value_or_error(lambda: expand_hosts(text), "hosts")
    for ranks in (None, 6):
        value_or_error(partial(hosts_with_ranks, text, ranks=ranks), "host", "--np")


def check_topology(data: bytes, folder: Path) -> None:
    """Read `--topology` as lscpu's output, as files of sysfs, and the files of control groups."""
    file = write_file(folder / "lscpu.txt", data)
    copy = folder / "sys"
    for name in ("cpu/online", "cpu/cpu0/topology/thread_siblings_list", "node/node0/cpulist"):
        write_file(copy / name, data)
    write_file(copy / "cpu/cpu0/topology/physical_package_id", b"0")
    for path in (file, copy):
        topology = value_or_error(partial(read_topology, path), str(path))
        if topology is not None:
            assert describe_sockets(list_sockets(topology))
    for name in ("cgroup", "status", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        write_file(folder / name, data)
    quota = read_quota(process=folder, cgroups=folder)
    assert quota is None or 0 < quota < float("inf")
    assert all(node >= 0 for node in read_memory_nodes(folder / "status"))


VARIABLES = ("RANK", "SIZE", "PMI_", "MPI_", "SLURM_", "MASTER_", "NODE", "SM_", "FLUX_", "hosts ")
"""Parts of names; an error must contain one."""


def check_environment(data: bytes, folder: Path) -> None:
    """Read environment variables, one `NAME=value` per line."""
    pairs = (line.partition("=") for line in data.decode("utf-8", "surrogateescape").split("\n"))
    environment = {name: value for name, equals, value in pairs if equals}
    ranks: Ranks | None = value_or_error(lambda: read_ranks(environment), *VARIABLES)
    readers: tuple[Callable[[], object], ...] = (
        lambda: master_port(environment),
        lambda: slurm_rendezvous(environment),
        lambda: cpus_of_job(environment),
    )
    for read in readers:
        value_or_error(read, *VARIABLES)
    if ranks is not None:
        assert 0 <= ranks.local_rank < ranks.local_size <= ranks.size
        assert ranks.local_rank <= ranks.rank < ranks.size
        cpus = frozenset(os.sched_getaffinity(0))
        value_or_error(lambda: slurm_affinities(environment, ranks, affinity=cpus), *VARIABLES)
