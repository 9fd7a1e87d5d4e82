"""Real inputs as seeds of a search: files of configs/ and of the tests, and generated ones."""

import functools
import io
import json
import tempfile
from pathlib import Path

from PIL import Image

from data.coco_json import read_annotations
from data.index import write_index
from launch.process_group import ProcessGroup
from retinanet.config_file import load_config
from retinanet.mlperf.log import running_log

REPOSITORY = Path(__file__).resolve().parents[2]
CUT = b"\x00\x00"

COCO = {
    "images": [
        {"id": 7, "file_name": "a/1.jpg", "width": 640, "height": 480},
        {"id": 9, "file_name": "2.png", "width": 20, "height": 30},
    ],
    "annotations": [
        {"id": 1, "image_id": 9, "category_id": 3, "bbox": [1, 2.5, 3e0, 4], "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 90, "bbox": [0, 0, 9, 9], "area": 70.5},
        {"id": 3, "image_id": 7, "category_id": 3, "bbox": [1, 1, 2, 2], "IsGroupOf": True},
    ],
    "categories": [{"id": 90, "name": "dög"}, {"id": 3, "name": "cat"}],
}
BOXES = b"""\
ImageID,LabelName,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside
0000000000000001,/m/cat,0.1,0.5,0.25,0.75,0,0,0,0,0
00000000000000af,/m/dog,0,1e0,-0.001,1.001,-1,1,0,1,0
"""
LSCPU = b"# CPU,Core,Socket,Node\n0,0,0,0\n1,0,0,0\n2,1,1,1\n3,1,1,\n"
ENVIRONMENTS = (
    b"PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2",
    b"OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=4\nOMPI_COMM_WORLD_LOCAL_RANK=0\n"
    b"OMPI_COMM_WORLD_LOCAL_SIZE=2",
    b"TORCHELASTIC_RUN_ID=x\nRANK=3\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\n"
    b"MASTER_ADDR=127.0.0.1\nMASTER_PORT=29500",
    b"SLURM_PROCID=2\nSLURM_STEP_ID=0\nSLURM_NTASKS=5\nSLURM_LOCALID=0\nSLURM_NODEID=1\n"
    b"SLURM_TASKS_PER_NODE=2(x2),1\nSLURM_JOB_ID=77\nSLURM_JOB_NODELIST=node[01-02,07]\n"
    b"SLURM_CPU_BIND_TYPE=mask_cpu:\nSLURM_CPU_BIND_LIST=0x3,0xc\nSLURM_JOB_CPUS_PER_NODE=4(x3)",
    b"PMI_ID=0",
    b"FLUX_TASK_RANK=1\nFLUX_JOB_SIZE=4\nFLUX_TASK_LOCAL_ID=1\nFLUX_JOB_NNODES=2",
    b'SM_HOSTS=["algo-1","algo-2"]\nSM_CURRENT_HOST=algo-2',
    b"PET_NNODES=2\nPET_NODE_RANK=1\nPET_MASTER_ADDR=127.0.0.1\nPET_MASTER_PORT=29500",
)


def configs() -> list[bytes]:
    """Return the files in configs/, and one with overrides."""
    files = [file.read_bytes() for file in sorted((REPOSITORY / "configs").glob("**/*.yaml"))]
    pairs = (b"training.batch_size=4", b"data.scenes.train=20", b"engine=torch", b"run.name=x")
    merged = b"a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b], y: [*a, *b]}\n"
    deep = b"a.a.a.a.a.a=1"
    return [
        *files,
        CUT.join((b"training: {epochs: 2}\nprofile: {onednn: {steps: 1-2}}\n", *pairs)),
        CUT.join((merged, deep)),
    ]


def mlperf_logs() -> list[bytes]:
    """Return the log of a converged run, its lines in another order, and parts of Intel's log."""
    config = load_config("demo.yaml")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mlperf.log"
        with running_log(config, group=ProcessGroup(), local_rank=0) as log:
            log.write_to(file, step=0, is_evaluated=False)
            log.events({"train_samples": 8, "eval_samples": 2})
            for epoch in (1, 2):
                log.epoch_started(epoch, step=4 * epoch - 4)
                log.epoch_stopped(epoch, step=4 * epoch)
                log.evaluation_started(epoch=epoch, step=4 * epoch)
                log.evaluated(0.3 * epoch, epoch=epoch, step=4 * epoch)
            log.reached_target()
        lines = file.read_bytes().splitlines()
    [intel] = (REPOSITORY / "tests" / "fixtures" / "mlperf").glob("intel-*.txt")
    return [b"\n".join(lines) + b"\n", b"\n".join(sorted(lines)), intel.read_bytes()]


def annotations() -> list[bytes]:
    """Return annotations in COCO's format, complete and in parts."""
    whole = json.dumps(COCO).encode()
    return [
        whole,
        json.dumps(COCO, indent=1, ensure_ascii=False).encode(),
        b"{}",
        b'{"images": []}',
    ]


@functools.cache
def index_files() -> dict[str, bytes]:
    """Return the files of a small index, by name."""
    with tempfile.TemporaryDirectory() as folder:
        source, index = Path(folder, "a.json"), Path(folder, "index")
        source.write_text(json.dumps(COCO), encoding="utf-8")
        write_index(index, read_annotations(source), made_from="a.json")
        return {file.name: file.read_bytes() for file in sorted(index.iterdir())}


def indexes() -> list[bytes]:
    """Return each file of the index, unchanged."""
    return [bytes([place]) + content for place, content in enumerate(index_files().values())]


def csv_files() -> list[bytes]:
    """Return boxes, classes and image ids."""
    return [
        BOXES,
        b"LabelName,DisplayName\n/m/cat,Cat\n/m/dog,Dog\n",
        b"/m/cat,Cat\n/m/0k5j,'Dog, a'\n",
        b"ImageID,Rotation\n0000000000000001,0.0\n",
    ]


def images() -> list[bytes]:
    """Return a small picture in every supported format, and in modes that are converted."""
    contents = []
    for name, mode, options in (
        ("JPEG", "RGB", {}),
        ("JPEG", "L", {"progressive": True}),
        ("JPEG", "CMYK", {}),
        ("PNG", "RGBA", {}),
        ("PNG", "I;16", {}),
        ("PNG", "P", {"transparency": 0}),
        ("WEBP", "RGB", {"lossless": True}),
        ("BMP", "RGB", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "RGB", {"compression": "tiff_deflate"}),
        ("TIFF", "F", {}),
        ("GIF", "P", {}),
    ):
        buffer = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated
        picture = Image.linear_gradient("L").resize((9, 7)).convert(mode)
        picture.save(buffer, name, **options, **({"exif": exif} if name == "JPEG" else {}))
        contents.append(buffer.getvalue())
    return contents


def logs() -> list[bytes]:
    """Return the first lines of real benchdnn logs, and our marks."""
    files = sorted((REPOSITORY / "tests" / "fixtures" / "onednn").glob("*.log"))
    heads = [b"\n".join(file.read_bytes().split(b"\n")[:14]) + b"\n" for file in files]
    marks = (
        b'profilednn_facts,{"rank": 0, "ranks": 2, "images_a_step": 2, "threads": 1}\n'
        b"profilednn_mark,1795230198092.696,begin,20\n"
        b"profilednn_mark,1795230198092.801,begin,20,forward\n"
        b"onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx512_core,undef,src:f32::blocked:ab::f0"
        b" wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,,400x256:256x64,0.5\n"
        b"profilednn_mark,1795230198904.113,end,20,forward\n"
        b"profilednn_mark,1795230199310.207,end,20\n"
    )
    return [*heads, marks]


def hostfiles() -> list[bytes]:
    """Return the formats of MPICH, Open MPI, batch systems, and Slurm."""
    return [
        b"node1:8\nnode2:8 # the second\n",
        b"node1 slots=8 max_slots=9\nnode2 slots = 8\n",
        b"node1\nnode1\nnode2\n",
        b"node[01-03,07],login1",
        b"a:4,b:4",
    ]


def topologies() -> list[bytes]:
    """Return lscpu's output, a list of CPUs, and files of control groups."""
    return [LSCPU, b"0-1\n", b"0", b"100000 100000", b"max 100000", b"Mems_allowed_list:\t0-1\n",
            b"0::/a/b\n1:cpu,cpuacct:/x\n"]  # fmt: skip


def environments() -> list[bytes]:
    """Return the variables that each launcher sets."""
    return list(ENVIRONMENTS)
