"""The rules by which commands of README and docs are tested; a command without a rule fails.

Commands run as the pages have them, except for what `CHANGES` replaces (paths, placeholders, sizes
that take hours) and what a rule appends (`more`: smaller images, fewer rounds).
"""

import re
from enum import Enum
from shutil import which
from typing import Any, NamedTuple

from tests.docs.pages import Command


class How(Enum):
    """The way in which a test runs a command."""

    RUN = "in the tests' process"
    BASH = "in a process of its own, by bash"
    MAKE = "make prints its recipe (-n), whose own commands are tested in turn"
    PARSED = "its options are read, and nothing else is done"
    CANNOT = "cannot run here; our part of it is read with --dry-run"


class Rule(NamedTuple):
    """The commands that it is for, and how they are tested. The first rule that matches counts."""

    pattern: str
    """A regular expression of whole commands, with `.venv/bin/retinanet` written as `retinanet`"""
    how: How
    more: str = ""
    """Arguments appended to the command"""
    instead: tuple[tuple[str, str], ...] = ()
    """Regular expressions and their replacements, applied after `CHANGES`"""
    needs: tuple[str, ...] = ()
    """Files in place that the command does not name"""
    status: int = 0
    writes: tuple[str, ...] = ()
    """Files that the command creates"""
    prints: tuple[str, ...] = ()
    """Parts of its output, on either stream"""
    unlike: tuple[str, ...] = ()
    """Beginnings of lines of the page that this machine or a small run does not print"""
    whole_machine: bool = False
    why: str = ""
    """Why it is not run, and the test that runs it instead"""


def run(pattern: str, more: str = "", **options: Any) -> Rule:
    return Rule(pattern, How.RUN, more, **options)


def bash(pattern: str, more: str = "", **options: Any) -> Rule:
    return Rule(pattern, How.BASH, more, **options)


def instead_of_start(text: str) -> tuple[tuple[str, str], ...]:
    """Return a replacement that puts a text before the command."""
    return ((r"^", text),)


def two_ranks(pattern: str, more: str = "", **options: Any) -> Rule:
    return bash(pattern, more, instead=TWO_RANKS, whole_machine=True, **options)


SMALL = (
    "data.image_size=64",
    "training.batch_size=2",
    "training.max_steps=2",
    "training.epochs=1",
    "evaluation.batch_size=2",
    "evaluation.pictures=1",
    "engine.precision=float32",
)
SCENES = ("data.scenes.train=8", "data.scenes.validation=2")
TINY = " ".join(SMALL)
SYNTHETIC = " ".join((*SCENES, *SMALL))
BACKBONE = "model.pretrained_backbone=backbone.safetensors"

CHANGES: tuple[tuple[str, str], ...] = (
    # data sets
    (r"/data/open-images-v6-mlperf", "sets/openimages"),
    (r"/data/coco|(?<==)photos(?=/train2017)", "sets/coco"),
    # placeholders
    (r" LOG\b", " runs/demo/onednn/rank0.log"),
    (r" REFERENCE\b", " runs/profiled/onednn/rank0.log"),
    (r" TRACE\b", " runs/demo/trace/rank0.json.gz"),
    (r"runs/<name>|runs/NAME", "runs/demo"),
    (r"--config NAME", "--config demo.yaml"),
    (r"--out DIR", "--out written"),
    (r" PHOTOS\b", " sets/coco/train2017"),
    (r" RUN…", " runs/a runs/b runs/c"),
    (r" RUN\b", " runs/a"),
    (r"\bFILE\.pth", "backbone.pth"),
    (r"\bFILE\.safetensors", "written.safetensors"),
    # a copy that the reader of a page makes
    (r"(?<=--config )my-photos\.yaml", "docs/examples/my-photos.yaml"),
    # omissions
    (r"\S*=… ?|…/| …", ""),
    # steps of a run of two steps
    (r"(profile\.\w+\.steps)=\d+-\d+", r"\1=2"),
)

QUICK_REPLAY = "--top 6 --repeats 1 --no-cold"

TWO_RANKS = ((r"-np \d+", "-np 2"), (r"groups=4", "groups=2"))

FEW_UMBRELLAS = (
    "data.train_annotations=my-photos/train.json data.train_images=my-photos/images",
    "data.validation_annotations=my-photos/validation.json data.validation_images=my-photos/images",
)
OWN_PHOTOS = ("my-photos/train.json", "my-photos/validation.json", "my-photos/images")

CONVERTED = tuple(f"converted/{name}.json" for name in ("train", "validation", "test"))

NAMED_BY: dict[str, tuple[str, ...]] = {
    "docs/examples/my-photos.yaml": (*OWN_PHOTOS, "runs/demo"),
    "runs/my-photos": OWN_PHOTOS,
    "runs/my-photos/report.next.txt": ("more-photos",),
    "docs/examples/photos/photos.yaml": ("coco128", *CONVERTED),
    "runs/photos": ("coco128", *CONVERTED),
}
"""What a file or run names in turn, so that a command with it needs both."""

WIDE = ((r"(?<!runs/)\bwide\b(?=/| )", "my-photos"), (r"wide$", "my-photos"))
"""Smaller pictures than those of `data scenes --small-objects`"""

# The checkout's folders are links in the tests, and a patch must not change their targets.
COPIED = (
    "mkdir -p runs/changed && "
    "cp -rL train.py common configs data launch profiling retinanet runs/changed/ && "
)
PATCH = "git apply --directory runs/changed docs/examples/float32-logits.patch"

LOGGED = f"{SYNTHETIC} engine.precision=bf16 profile.onednn.steps=2 profile.trace.steps=2"

CANNOT = {
    r"apt-get install .*": "root, and packages that would stay",
    r"(?:CC=.*)?\.venv/bin/pip (?:un)?install .*": "the packages of the tests' own environment",
    r"CPATH=.* \./setup\.sh uv .*": "accimage's source; tests with the marker `accimage`",
    r"srun .*": "no Slurm",
    r"(?:mpirun .*)?(?:docker|podman|buildah|apptainer|kubectl) .*": "containers",
    r"mpirun (?!.* train\b).*": "a launcher's options alone; tests/launch/test_mpirun.py",
    r"numastat -p PID": "no numactl",
    r"(?:git clone|wget) .*": "the internet",
    r"(?:cmake|cp) .*build.*": "oneDNN's sources; it takes 35 minutes",
}
STUDIES = "tests/profiling/studies"
OF_COCO = "torchvision's files are not here; tests/retinanet/training/test_coco_detectors.py"
PARSED = {
    r"retinanet train .* model\.weights=torchvision( --check)?": OF_COCO,
    r"retinanet convert --detector retinanet_resnet50_fpn_v2 .*": OF_COCO,
    r"retinanet predict --checkpoint converted/coco .*": OF_COCO,
    r"retinanet launch scale .*": f"{STUDIES}/scale/test_command.py",
    r"retinanet launch groups .*": f"{STUDIES}/async_groups/test_command.py",
    r"retinanet launch tune .*--measure-hosts .*": f"two hosts; {STUDIES}/tune",
    r"retinanet launch tune --plan coco\.json .*": f"it trains; {STUDIES}/tune",
    r"retinanet profile peaks.*": "tests/profiling",
    r"retinanet profile layers .*": "tests/profiling/layers",
    r"retinanet profile bench .*": "tests/profiling/bench",
    r"retinanet profile ablate run.*": "tests/profiling/ablate",
    r"retinanet export .* --format openvino .*": "tests/retinanet/export/test_openvino.py",
    r"python -m tests\.torture .*": "tests/test_torture.py",
}
"""Commands that tests run in small."""

RULES = (
    *(Rule(pattern, How.CANNOT, why=why) for pattern, why in CANNOT.items()),
    *(Rule(pattern, How.PARSED, why=why) for pattern, why in PARSED.items()),
    # setting up, and the make targets
    Rule(r"make( .*)?", How.MAKE),
    bash(
        r"\./setup\.sh \S+",
        instead=((r"^\S+ (\S+)$", r"bash -n setup.sh && grep -w '\1' setup.sh"),),
        why="it installs packages; tests/test_setup.py",
    ),
    bash(
        r"\./setup\.sh uv .*",
        instead=((r"^\S+ uv .*", r"bash -n setup.sh && grep -F 'uv\\ *)' setup.sh"),),
        why="it installs packages; tests/test_setup.py",
    ),
    bash(r"\.ci/run", instead=instead_of_start("bash -n "), why="it is the whole suite"),
    bash(r"\.venv/bin/pre-commit install", instead=instead_of_start("git init -q . && ")),
    bash(r"python -m pip config list"),
    # small objects
    run(
        r"retinanet data scenes .*--small-objects",
        instead=((r"--images 5", "--images 1"),),
        writes=("wide/annotations/instances_default.json",),
    ),
    run(r"retinanet data split wide/.*", instead=WIDE, writes=("my-photos/train.json",)),
    run(
        r"retinanet data tile wide/.*",
        instead=WIDE,
        needs=("my-photos/images",),
        writes=("tiles/my-photos.yaml", "tiles/images/validation/*-0-0.jpg"),
    ),
    run(
        r"retinanet train --config tiles/my-photos\.yaml .*",
        TINY,
        instead=((r"tiles/my", "docs/examples/my"), (r"=wide", "=wide model.weights=null")),
        prints=("finished after 2 steps",),
    ),
    run(
        r"retinanet evaluate --checkpoint runs/wide .*",
        "--batch-size 2",
        instead=(*WIDE, (r"runs/wide", "runs/demo")),
        prints=("mAP50",),
    ),
    run(
        r"retinanet predict --checkpoint runs/wide .*",
        instead=(*WIDE, (r"runs/wide", "runs/demo")),
        writes=("predictions/*.boxes.png",),
    ),
    # data
    run(r"retinanet data scenes .*", writes=("*/annotations/instances_default.json",)),
    run(r"retinanet data split .*", writes=("my-photos/train.json", "my-photos/validation.json")),
    run(r"retinanet data verify --config my-photos\.yaml", prints=("nothing stops training",)),
    run(
        r"retinanet data download .*",
        "--classes all --pause 0.001",
        writes=("sets/*/train/labels/openimages-mlperf.json", "sets/*/validation/data/*.jpg"),
    ),
    run(r"retinanet data verify .*"),
    run(
        r"retinanet data show --config my-photos\.yaml .*",
        "data.image_size=64 --count 1 --epochs 1",
    ),
    run(
        r"retinanet data show .*",
        " ".join((*SCENES, "data.image_size=64", "--count 1 --epochs 1")),
        writes=("show.png",),
    ),
    run(r"retinanet data pack .*", writes=("packed/train/images-00000.tar",)),
    run(r"retinanet data convert .*\.csv .*", "--classes all"),
    run(
        r"retinanet data convert \S+-photos --from .*",
        writes=("converted/train.json", "converted/validation.json.index/current.json"),
    ),
    run(r"retinanet data convert strange-set --from .*", status=2),
    run(
        r"retinanet data convert \S+",
        writes=("sets/coco/annotations/*.json.index/current.json",),
    ),
    run(
        r"retinanet data bench .*",
        "--limit 4 --rounds 1 --batch-size 2 --image-size 64 --decoders simplejpeg",
    ),
    bash(r"python -m retinanet\.engine\.kernels"),
    # mistakes that the pages show
    run(r"retinanet train .* batch_size=2", status=2),
    run(r"retinanet train .*pretrained_backbone=backbone\.pth", status=2),
    run(r"retinanet train .*mlperf\.division=closed .*optimizer=lamb .*", status=2),
    run(
        r"retinanet train .*learning_rate=1e30 .*",
        SYNTHETIC,
        status=3,
        writes=("runs/diverged/checkpoints/nonfinite-*/report.json",),
    ),
    run(
        r"\.venv-ipex/bin/retinanet train .*engine=ipex",
        SYNTHETIC,
        instead=((r"^\S+/(.*)=ipex", r"\1=torch"),),
        why="it needs .venv-ipex; tests/retinanet/engine/test_ipex_engine.py",
    ),
    # the tutorial
    bash(
        r"retinanet learn \S+ --hours \S+",
        instead=((r"my-photos", "shapes"), (r"--hours \S+", "--hours 1e-5")),
        writes=("runs/shapes/my-photos.yaml", "runs/shapes/detector/report.html"),
        prints=("random numbers", "finished after 1 step"),
    ),
    run(
        r"retinanet train --config runs/shapes/my-photos\.yaml .*",
        TINY,
        instead=((r"runs/shapes", "docs/examples"),),
        prints=("finished after 2 steps",),
    ),
    bash(r"cp docs/examples/my-photos\.yaml my-photos\.yaml", writes=("my-photos.yaml",)),
    run(r"retinanet train --config my-photos\.yaml --check", TINY, prints=("the run can start",)),
    run(
        r"retinanet train --config my-photos\.yaml --resume",
        f"{TINY} training.max_steps=3",
        needs=("runs/my-photos",),
        prints=("resumed", "finished after 3 steps"),
    ),
    run(
        r"retinanet train --config my-photos\.yaml",
        TINY,
        writes=("runs/my-photos/checkpoints/best", "runs/my-photos/pictures/curves.png"),
        prints=("finished after 2 steps",),
    ),
    run(r"retinanet report runs/my-photos --unlabelled .*", prints=("Label next: ",)),
    bash(
        r"xargs .* retinanet predict .*",
        writes=("to-correct/annotations/instances_default.json",),
    ),
    run(
        r"retinanet predict .*--labels yolo .*",
        writes=("predicted/data.yaml", "predicted/train/labels/photo-00000.txt"),
    ),
    bash(  # a shell replaces the asterisk
        r"retinanet predict .*/\*\.jpg",
        writes=("predictions/photo-00002.boxes.png",),
    ),
    # real photos
    bash(r"ls coco128/.* coco128/\w+\.txt"),
    bash(r"cp docs/examples/photos/data\.yaml coco128/"),
    run(
        r"retinanet data convert coco128 --from yolo .*",
        writes=CONVERTED,
    ),
    run(
        r"retinanet train --config docs/examples/photos/photos\.yaml",
        TINY,
        writes=("runs/photos/checkpoints/best",),
    ),
    # the worked example
    bash(r"mkdir -p runs/changed", writes=("runs/changed",)),
    bash(
        r"cp -r .* runs/changed/",
        instead=((r"^cp -r", "mkdir -p runs/changed && cp -rL"),),
        writes=("runs/changed/train.py", "runs/changed/retinanet/engine/folded_forward.py"),
    ),
    bash(
        re.escape(PATCH),
        "&& ! diff -r retinanet/engine runs/changed/retinanet/engine",
        instead=instead_of_start(f"git init -q . && {COPIED}"),
        prints=("level.float()",),
    ),
    bash(
        r"python runs/changed/train\.py .*",
        LOGGED,
        instead=instead_of_start(f"{COPIED}{PATCH} && "),
        writes=("runs/after/onednn/rank0.log",),
    ),
    run(
        r"retinanet train --config docs/examples/profiled\.yaml .*",
        LOGGED,
        instead=((r"=mended", "=before"),),  # the same program again
        writes=("runs/*/onednn/rank0.log", "runs/*/trace/rank0.json.gz"),
    ),
    # training
    run(
        r"retinanet train --config docs/examples/few-umbrellas\.yaml .*",
        f"{TINY} {' '.join(FEW_UMBRELLAS)}",
        writes=("runs/*/checkpoints/best",),
    ),
    bash(
        r"retinanet train .*--check .*launch\.threads=3 .*",
        f"data.root=sets/coco {BACKBONE} data.image_size=64",
        instead=((r"threads=3", "threads=4096"), (r"batch_size=64", "batch_size=2")),
        status=2,
        unlike=("the run cannot",),
    ),
    run(
        r"retinanet train .*--check data\.train_annotations.*",
        f"{TINY} {BACKBONE} data.root=sets/coco",
    ),
    run(r"retinanet train .*--check", f"{TINY} {BACKBONE}"),
    run(
        r"retinanet train --config openimages\.yaml .*--resume",
        f"{TINY} {BACKBONE}",
        needs=("runs/openimages",),
        prints=("resumed",),
    ),
    bash(
        r"OMP_NUM_THREADS=1 GOMP_CPU_AFFINITY=1 retinanet train",
        f"{SYNTHETIC} training.max_steps=1",
        whole_machine=True,
    ),
    run(
        r"retinanet train .*--config (?:coco|openimages)\.yaml .*",
        f"{TINY} {BACKBONE}",
        writes=("runs/*/checkpoints/best", "runs/*/mlperf.log"),
    ),
    run(
        r"retinanet train .*profile\.onednn\.steps=.*",
        SYNTHETIC,
        writes=("runs/*/onednn/rank0.log",),
    ),
    # training by several ranks
    two_ranks(
        r"mpirun -np 8 retinanet train --config openimages\.yaml data\.root=\S+",
        f"{TINY} {BACKBONE}",
        writes=("runs/openimages/checkpoints/best",),
        prints=("2 ranks",),
    ),
    two_ranks(
        r"mpirun -np 2 retinanet train .*profile\.perf=true",
        SYNTHETIC,
        writes=("runs/demo/onednn/rank1.log", "runs/demo/trace/rank1.json.gz"),
        unlike=() if which("perf") else ("  counters",),
    ),
    two_ranks(
        r"mpirun -np 2 retinanet train … --resume",
        f"{SYNTHETIC} training.max_steps=5 training.epochs=2",
        needs=("runs/demo",),
    ),
    two_ranks(
        r"mpirun -np 2 retinanet train .*batch_split=speed",
        f"{SYNTHETIC} training.batch_size=4",
    ),
    two_ranks(r"mpirun -np 8 retinanet train … --check", SYNTHETIC),
    bash(
        r"for run in 0 1 2 3 4; do\n *mpirun .*\ndone",
        instead=(("0 1 2 3 4", "0"), *TWO_RANKS, (r"\ndone", " --dry-run\ndone")),
        whole_machine=True,
        why="OpenImages by MLPerf's rules; tests/test_train_mlperf.py",
    ),
    bash(r"mpirun -np 1 retinanet train", "--dry-run", unlike=("note: open-mpi",)),
    two_ranks(
        r"mpirun -np \d+ retinanet train( .*)?",
        "--dry-run",
        prints=("rank",),
        why="8 ranks; tests/test_train_ranks.py, tests/test_train_groups.py",
    ),
    bash(
        r"torchrun --nproc-per-node 8 train\.py …",
        "--dry-run",
        instead=(("node 8", "node 2"),),
        whole_machine=True,
    ),
    # recipes
    bash(
        r"bash launch/recipes/one-host-8-sockets\.sh",
        "--config demo.yaml --dry-run",
        instead=instead_of_start("RANKS=1 DATA=null "),
    ),
    bash(r"cp launch/recipes/hosts\.example hosts", writes=("hosts",)),
    bash(
        r"bash launch/recipes/several-hosts\.sh",
        "--config demo.yaml --dry-run",
        instead=instead_of_start("HOSTS=my-hosts DATA=null "),
        whole_machine=True,
    ),
    bash(
        r"(?:[A-Z]+=\S+ )*bash launch/recipes/container\.sh",
        instead=((r"^.*bash", "ENGINE=echo RANKS=1 bash"),),
        prints=("run --rm", "retinanet train --config openimages.yaml"),
        why="no docker; its command is printed",
    ),
    bash(
        r"(?:sbatch|qsub) launch/recipes/[\w-]+\.(?:sbatch|pbs)",
        instead=((r"^\w+", "bash -n"),),
        why="no Slurm, no PBS; tests/launch/test_recipes.py",
    ),
    bash(
        r"bash launch/recipes/16-hosts\.sh",
        "--config demo.yaml --dry-run launch.comm_cores=0",
        instead=instead_of_start("HOSTS=my-hosts RANKS=2 DATA=null "),
        whole_machine=True,
    ),
    bash(
        r"bash launch/image/try_it\.sh",
        instead=((r"^bash", "bash -n"),),
        why="root, debootstrap and podman",
    ),
    bash(
        r"python -m launch\.image\.health",
        instead=((r"-m (\S+)", r"-c 'import \1'"),),
        why="it looks at all processes; tests/launch/image/test_health.py",
    ),
    # a trained detector
    run(r"retinanet predict .*\.mp4 .*", writes=("predictions/*.boxes.mp4",)),
    run(r"retinanet predict .*", writes=("predictions/**/*.boxes.png",)),
    bash(r"head -n 3 predictions/\w+\.json", prints=("[",)),
    bash(r"head -n 24 .*/MODEL_CARD\.md", prints=("object-detection", "mAP")),
    run(r"retinanet export .*", prints=("checked with",)),
    bash(
        r"tensorboard --logdir runs",
        "--inspect",
        needs=("runs/demo",),
        prints=("loss",),
    ),
    bash(r"tensorboard .*", "--inspect", prints=("loss",)),
    run(
        r"retinanet evaluate --checkpoint converted/mlperf .*",
        instead=((r"converted/mlperf", "runs/openimages"),),
        why="MLPerf's weights and data set are not here; tests/retinanet/training/test_convert.py",
        prints=("mAP50",),
    ),
    run(r"retinanet evaluate .*", prints=("mAP50",)),
    run(r"retinanet report .*", prints=("open it in a browser",)),
    run(r"retinanet convert --detector .* --trust", writes=("converted/*",)),
    run(r"retinanet convert .* --trust"),
    run(r"retinanet convert .*", status=2),
    # an installation
    bash(
        r"pip install (?:\. -c requirements\.txt|retinanet_cpu-\S+\.whl)",
        instead=((r"^.*", "true"),),
        why="it downloads; tests/test_wheel.py installs the wheel",
    ),
    bash(
        r"retinanet train --config demo\.yaml",
        SYNTHETIC,
        why="by the checkout's program; tests/test_wheel.py trains with the wheel",
    ),
    # all commands, editors and shells
    run(r"retinanet config schema --out .*"),
    bash(r"source <\(retinanet completion bash\)", "&& complete -p retinanet"),
    # MLPerf
    run(r"retinanet mlperf submission .*", status=4),
    run(r"retinanet mlperf (?:check|compare|rcp|points) .*"),
    # ranks
    bash(r"lscpu .* > .*", writes=("node.txt",)),
    run(r"retinanet launch plan .*"),
    run(r"retinanet launch run .*", instead=((r"launch run", "launch run --dry-run"),)),
    run(
        r"retinanet launch tune --plan scenes\.json .*--probe .*",
        unlike=("  global batch ",),  # all have been trained already
    ),
    run(r"retinanet launch tune .*"),
    # profiling
    bash(
        r"pip install (--no-deps retinanet_cpu-.*\.whl|rich pydantic jinja2 matplotlib)",
        instead=((r"^.*", "true"),),
        why="a registry; tests/profiling/test_without_torch.py has only these packages",
    ),
    bash(
        r"retinanet profile capture .*",
        needs=("my_train.py",),
        writes=("captured",),
        prints=("operators  known for 100.0% of oneDNN's time",),
    ),
    run(
        r"retinanet profile stats captured .*",
        unlike=("4 problems by",),
    ),
    run(
        r"retinanet profile trace .*",
        unlike=("hardly fragmented",),
    ),
    run(  # measuring peaks takes half a minute
        r"retinanet profile stats (?!.*--peaks).*--out .*", "--peaks peaks.json"
    ),
    bash(
        r"for run in 1 2 3; do\n.*time_resnet18.*\ndone",
        instead=(
            (r"1 2 3", "1"),
            (r"\.venv-\$side/bin/python (\S+) 30", r"python docs/examples/\1 2"),
        ),
        writes=("logs/new/1.log", "logs/old/1.log"),
    ),
    run(r"retinanet profile (?:stats|compare) .*"),
    run(r"retinanet profile benchdnn .*", QUICK_REPLAY),
    run(
        r"retinanet profile efficiency .* --no-cold .*",
        "--repeats 1 --peaks none",
        writes=("runs/efficiency/replay.json",),
        prints=("efficiency:",),
    ),
    run(
        r"retinanet profile efficiency .*",
        "--replay replay/replay.json --peaks none",
        prints=("efficiency:",),
    ),
    run(r"retinanet profile report runs/after .*", "--peaks none"),
    run(r"retinanet profile report .*--peaks .*", writes=("report.html",)),
    run(r"retinanet profile report .*", "--peaks none", writes=("report.html",)),
    run(r"retinanet profile ablate list"),
    run(
        r"retinanet profile ablate report --quick",
        needs=("runs/ablations/quick",),
        writes=("runs/ablations/quick/ablations.html", "runs/ablations/quick/ablations.md"),
    ),
    run(r"python -m tests\.(structure|language)"),
)


def matching_rule(command: Command) -> Rule | None:
    """Return the first rule that matches."""
    text = plain(command.text)
    return next((rule for rule in RULES if re.fullmatch(rule.pattern, text, re.DOTALL)), None)


def plain(text: str) -> str:
    """Return the command with its program written in one way, as rules have it."""
    return re.sub(r"(?:\.venv/bin/)(?=(?:mpirun|python|retinanet|tensorboard) )", "", text)


NAME = re.compile(
    r"retinanet(?: [a-z][a-z-]*){0,3}(?: --[a-z-]+)*(?: …)?|"
    r"python -m (?:data|launch|profiling|retinanet)|"
    r"train\.py|make|\.venv/bin/(?:python|mpirun|retinanet)|mpirun|srun|torchrun|docker [a-z]+"
)
"""A command's name, perhaps with an option, which is not meant to be run as it stands."""


def is_a_name(command: Command) -> bool:
    """Return whether a sentence only names a command."""
    return command.is_inline and bool(NAME.fullmatch(plain(command.text)))
