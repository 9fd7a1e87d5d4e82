"""How each command of README and docs is tried. A command without a rule fails its test.

Commands are run as the pages have them, but for what `CHANGES` replaces (paths, placeholders, sizes
that take hours) and what a rule puts behind them (`more`: smaller images, fewer rounds).
"""

import re
from enum import Enum
from shutil import which
from typing import NamedTuple

from tests.docs.pages import Command


class How(Enum):
    """What a test does with a command."""

    RUN = "runs in the tests' process"
    BASH = "runs in a process of its own, by bash"
    MAKE = "make prints its recipe (-n), whose own commands are tried in turn"
    PARSED = "its options are read, and nothing is done"
    CANNOT = "cannot run here; what is in it of ours is read with --dry-run"


class Rule(NamedTuple):
    """What commands it is for, and what is done with them. The first that fits counts."""

    of: str
    """A regular expression of whole commands, `.venv/bin/python` written as `python`"""
    how: How
    more: str = ""
    """Words put behind the command"""
    instead: tuple[tuple[str, str], ...] = ()
    """Regular expressions and what takes their place, after `CHANGES`"""
    needs: tuple[str, ...] = ()
    """Things in place that the command does not name"""
    status: int = 0
    writes: tuple[str, ...] = ()
    """Files that are there afterwards, and were not before"""
    prints: tuple[str, ...] = ()
    """Parts of what it prints, on either stream"""
    unlike: tuple[str, ...] = ()
    """Beginnings of lines that the page shows, and this machine or so small a run does not print"""
    whole_machine: bool = False
    why: str = ""
    """Why it is not run, and what runs it instead"""


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
DRAWN = " ".join((*SCENES, *SMALL))
BACKBONE = "model.pretrained_backbone=backbone.safetensors"

CHANGES: tuple[tuple[str, str], ...] = (
    # data sets
    (r"/data/open-images-v6-mlperf", "sets/openimages"),
    (r"/data/coco|(?<==)photos(?=/train2017)", "sets/coco"),
    # words that stand for a user's own
    (r" LOG\b", " runs/demo/onednn/rank0.log"),
    (r" REFERENCE\b", " runs/profiled/onednn/rank0.log"),
    (r" TRACE\b", " runs/demo/trace/rank0.json.gz"),
    (r"runs/<name>|runs/NAME", "runs/demo"),
    (r"--config NAME", "--config demo.yaml"),
    (r"--out DIR", "--out written"),
    (r" MODEL\b", " alexnet"),
    (r" PHOTOS\b", " sets/coco/train2017"),
    (r" RUN…", " runs/a runs/b runs/c"),
    (r" RUN\b", " runs/a"),
    (r"\bFILE\.pth", "backbone.pth"),
    (r"\bFILE\.safetensors", "written.safetensors"),
    (r"<url>", "http://127.0.0.1:1/"),
    # a copy that a page has its reader make
    (r"(?<=--config )my-photos\.yaml", "docs/examples/my-photos.yaml"),
    # what is left out
    (r"\S*=… ?|…/| …", ""),
    # steps that a run of two has
    (r"(profile\.\w+\.steps)=\d+-\d+", r"\1=2"),
    # processes of others
    (r"/proc/\d+/", "/proc/$$/"),
)

QUICK_REPLAY = "--top 6 --repeats 1 --no-cold"

TWO_RANKS = ((r"-np \d+", "-np 2"), (r"groups=4", "groups=2"))

OWN_PHOTOS = ("my-photos/train.json", "my-photos/validation.json", "my-photos/images")

# A checkout's folders are links here, and a patch must not reach what they lead to.
COPIED = (
    "mkdir -p runs/changed && "
    "cp -rL train.py common configs data launch profiling retinanet runs/changed/ && "
)
PATCH = "git apply --directory runs/changed docs/examples/float32-logits.patch"

LOGGED = f"{DRAWN} engine.precision=bf16 profile.onednn.steps=2 profile.trace.steps=2"

OF_TESTS = "the suite runs it in small: "

RULES = (
    # setting up, and the make targets
    Rule(r"make( .*)?", How.MAKE),
    Rule(
        r"\./setup\.sh \S+",
        How.BASH,
        instead=((r"^\S+ (\S+)$", r"bash -n setup.sh && grep -w '\1' setup.sh"),),
        why="it installs packages; tests/test_setup.py",
    ),
    Rule(r"\.ci/run", How.BASH, instead=((r"^", "bash -n "),), why="it is the whole suite"),
    Rule(r"\.venv/bin/pre-commit install", How.BASH, instead=((r"^", "git init -q . && "),)),
    Rule(r"apt-get install .*", How.CANNOT, why="root, and packages that would stay"),
    Rule(r"python -m pip config list", How.BASH),
    # data
    Rule(r"python -m data scenes .*", How.RUN, writes=("*/annotations/instances_default.json",)),
    Rule(
        r"python -m data split .*",
        How.RUN,
        writes=("my-photos/train.json", "my-photos/validation.json"),
    ),
    Rule(
        r"python -m data verify --config my-photos\.yaml",
        How.RUN,
        needs=OWN_PHOTOS,
        prints=("nothing stops training",),
    ),
    Rule(
        r"python -m data download .*",
        How.RUN,
        more="--classes all --pause 0.001",
        writes=("sets/*/train/labels/openimages-mlperf.json", "sets/*/validation/data/*.jpg"),
    ),
    Rule(r"python -m data verify .*", How.RUN),
    Rule(r"python -m data convert .*\.csv .*", How.RUN, more="--classes all"),
    Rule(
        r"python -m data convert \S+",
        How.RUN,
        writes=("sets/coco/annotations/*.json.index/current.json",),
    ),
    Rule(
        r"python -m data bench .*",
        How.RUN,
        more="--limit 4 --rounds 1 --batch-size 2 --image-size 64 --decoders simplejpeg",
    ),
    # mistakes that the pages show
    Rule(r"python train\.py .* batch_size=2", How.RUN, status=2),
    Rule(r"python train\.py .*pretrained_backbone=backbone\.pth", How.RUN, status=2),
    Rule(r"python train\.py .*mlperf\.division=closed .*optimizer=lamb .*", How.RUN, status=2),
    Rule(
        r"python train\.py .*learning_rate=1e30 .*",
        How.RUN,
        more=DRAWN,
        status=3,
        writes=("runs/diverged/checkpoints/nonfinite-*/report.json",),
    ),
    Rule(
        r"python train\.py run\.root=small",
        How.RUN,
        more="--dry-run",
        unlike=("error: disk space",),
        why="it needs a full disk: tests/test_train_disk.py",
    ),
    # the tutorial
    Rule(
        r"cp docs/examples/my-photos\.yaml my-photos\.yaml",
        How.BASH,
        writes=("my-photos.yaml",),
    ),
    Rule(
        r"python train\.py --config my-photos\.yaml --check",
        How.RUN,
        more=TINY,
        needs=OWN_PHOTOS,
        prints=("the run can work",),
    ),
    Rule(
        r"python train\.py --config my-photos\.yaml --resume",
        How.RUN,
        more=f"{TINY} training.max_steps=3",
        needs=(*OWN_PHOTOS, "runs/my-photos"),
        prints=("resumed", "finished after 3 steps"),
    ),
    Rule(
        r"python train\.py --config my-photos\.yaml",
        How.RUN,
        more=TINY,
        needs=OWN_PHOTOS,
        writes=("runs/my-photos/checkpoints/best", "runs/my-photos/pictures/curves.png"),
        prints=("finished after 2 steps",),
    ),
    Rule(
        r"python -m retinanet evaluate --checkpoint runs/my-photos",
        How.RUN,
        needs=OWN_PHOTOS,
        prints=("mAP50",),
    ),
    Rule(
        r"python -m retinanet predict .*/\*\.jpg",
        How.BASH,  # a shell replaces the asterisk
        writes=("predictions/photo-00002.boxes.png",),
    ),
    # the worked example
    Rule(r"mkdir -p runs/changed", How.BASH, writes=("runs/changed",)),
    Rule(
        r"cp -r .* runs/changed/",
        How.BASH,
        instead=((r"^cp -r", "mkdir -p runs/changed && cp -rL"),),
        writes=("runs/changed/train.py", "runs/changed/retinanet/engine/folded_forward.py"),
    ),
    Rule(
        re.escape(PATCH),
        How.BASH,
        instead=((r"^", f"git init -q . && {COPIED}"),),
        more="&& ! diff -r retinanet/engine runs/changed/retinanet/engine",
        prints=("level.float()",),
    ),
    Rule(
        r"python runs/changed/train\.py .*",
        How.BASH,
        instead=((r"^", f"{COPIED}{PATCH} && "),),
        more=LOGGED,
        writes=("runs/after/onednn/rank0.log",),
    ),
    Rule(
        r"python train\.py --config docs/examples/profiled\.yaml .*",
        How.RUN,
        instead=((r"=mended", "=before"),),  # the same program again
        more=LOGGED,
        writes=("runs/*/onednn/rank0.log", "runs/*/trace/rank0.json.gz"),
    ),
    # training
    Rule(r"train\.py --help", How.RUN, prints=("--dry-run", "data.root")),
    Rule(r"train\.py --check", How.RUN, more=DRAWN),
    Rule(
        r"python train\.py .*--check .*launch\.threads=3 .*",
        How.BASH,
        instead=((r"threads=3", "threads=4096"), (r"batch_size=64", "batch_size=2")),
        more=f"data.root=sets/coco {BACKBONE} data.image_size=64",
        status=2,
        unlike=("error: /dev/shm", "error: data", "error: disk space", "the run cannot"),
    ),
    Rule(
        r"python train\.py .*--check data\.train_annotations.*",
        How.RUN,
        more=f"{TINY} {BACKBONE} data.root=sets/coco",
    ),
    Rule(r"python train\.py .*--check", How.RUN, more=f"{TINY} {BACKBONE}"),
    *(
        Rule(
            rf"python train\.py --config {name}\.yaml .*--resume",
            How.RUN,
            more=f"{TINY} {BACKBONE}",
            needs=(f"runs/{name}",),
            prints=("resumed",),
        )
        for name in ("coco", "openimages")
    ),
    Rule(
        r"OMP_NUM_THREADS=1 GOMP_CPU_AFFINITY=1 python train\.py",
        How.BASH,
        more=f"{DRAWN} training.max_steps=1",
        whole_machine=True,
    ),
    Rule(
        r"python train\.py .*--config (?:coco|openimages)\.yaml .*",
        How.RUN,
        more=f"{TINY} {BACKBONE}",
        writes=("runs/*/checkpoints/best", "runs/*/mlperf.log"),
    ),
    Rule(
        r"python train\.py .*profile\.onednn\.steps=.*",
        How.RUN,
        more=DRAWN,
        writes=("runs/*/onednn/rank0.log",),
    ),
    Rule(r"python train\.py .*", How.RUN, more=DRAWN, writes=("runs/*/metrics.jsonl",)),
    # training by several ranks
    Rule(
        r"\.venv/bin/mpirun -np 8 python train\.py --config openimages\.yaml data\.root=\S+",
        How.BASH,
        instead=TWO_RANKS,
        more=f"{TINY} {BACKBONE}",
        writes=("runs/openimages/checkpoints/best",),
        prints=("2 ranks",),
        whole_machine=True,
    ),
    Rule(
        r"mpirun -np 2 python train\.py .*profile\.perf=true",
        How.BASH,
        more=DRAWN,
        writes=("runs/demo/onednn/rank1.log", "runs/demo/trace/rank1.json.gz"),
        unlike=("note: profile.perf", *(() if which("perf") else ("  counters",))),
        whole_machine=True,
    ),
    Rule(
        r"mpirun -np 2 python train\.py … --resume",
        How.BASH,
        more=f"{DRAWN} training.max_steps=5 training.epochs=2",
        needs=("runs/demo",),
        whole_machine=True,
    ),
    Rule(
        r"mpirun -np 2 python train\.py .*batch_split=speed",
        How.BASH,
        more=f"{DRAWN} training.batch_size=4",
        whole_machine=True,
    ),
    Rule(
        r"mpirun -np 2 python train\.py .*batch_split=\[3, 2\]'",
        How.BASH,
        more=DRAWN,
        status=2,
        whole_machine=True,
    ),
    Rule(
        r"mpirun -np 8 python train\.py … --check",
        How.BASH,
        instead=TWO_RANKS,
        more=DRAWN,
        whole_machine=True,
    ),
    Rule(
        r"for run in 0 1 2 3 4; do\n *mpirun .*\ndone",
        How.BASH,
        instead=(("0 1 2 3 4", "0"), *TWO_RANKS, (r"\ndone", " --dry-run\ndone")),
        whole_machine=True,
        why="OpenImages by MLPerf's rules; tests/test_train_mlperf.py",
    ),
    Rule(
        r"mpirun -np 1 python train\.py",
        How.BASH,
        more="--dry-run",
        unlike=("note: open-mpi",),
    ),
    Rule(
        r"(?:\.venv/bin/)?mpirun -np \d+ python train\.py( .*)?",
        How.BASH,
        instead=TWO_RANKS,
        more="--dry-run",
        prints=("rank",),
        whole_machine=True,
        why="8 ranks; tests/test_train_ranks.py, tests/test_train_groups.py",
    ),
    Rule(
        r"torchrun --nproc-per-node 8 train\.py …",
        How.BASH,
        instead=(("node 8", "node 2"),),
        more="--dry-run",
        whole_machine=True,
    ),
    Rule(r"srun .*", How.CANNOT, why="no Slurm"),
    Rule(
        r"(?:mpirun .*)?(?:docker|podman|buildah|apptainer|kubectl) .*",
        How.CANNOT,
        why="containers",
    ),
    Rule(
        r"mpirun (?!.*train\.py).*",
        How.CANNOT,
        why="a launcher's options alone; tests/launch/test_mpirun_command.py",
    ),
    # recipes
    Rule(
        r"bash launch/recipes/one-host-8-sockets\.sh",
        How.BASH,
        instead=((r"^", "RANKS=1 DATA=null "),),
        more="--config demo.yaml --dry-run",
    ),
    Rule(r"cp launch/recipes/hosts\.example hosts", How.BASH, writes=("hosts",)),
    Rule(
        r"bash launch/recipes/several-hosts\.sh",
        How.BASH,
        instead=((r"^", "HOSTS=my-hosts DATA=null "),),
        more="--config demo.yaml --dry-run",
        whole_machine=True,
    ),
    Rule(
        r"(?:[A-Z]+=\S+ )*bash launch/recipes/container\.sh",
        How.BASH,
        instead=((r"^.*bash", "ENGINE=echo RANKS=1 bash"),),
        prints=("run --rm", "python train.py --config openimages.yaml"),
        why="no docker; its command is printed",
    ),
    Rule(
        r"sbatch launch/recipes/\w+\.sbatch",
        How.BASH,
        instead=((r"^sbatch", "bash -n"),),
        why="no Slurm; tests/launch/test_recipes.py",
    ),
    Rule(
        r"bash launch/image/try_it\.sh",
        How.BASH,
        instead=((r"^bash", "bash -n"),),
        why="root, debootstrap and podman",
    ),
    Rule(
        r"python -m launch\.image\.health",
        How.BASH,
        instead=((r"-m (\S+)", r"-c 'import \1'"),),
        why="it looks at all processes; tests/launch/image/test_health.py",
    ),
    # looking at a process, and at a run
    Rule(r"grep -H Cpus_allowed_list .*", How.BASH, prints=("Cpus_allowed_list:",)),
    Rule(
        r"pgrep -P \d+ \| xargs -n1 taskset -cp",
        How.BASH,
        instead=((r"^(.*) \d{4}", r"sleep 0.5 & \1 $$"),),
    ),
    Rule(r"numastat -p PID", How.CANNOT, why="no numactl"),
    # a trained detector
    Rule(r"python -m retinanet predict .*\.mp4 .*", How.RUN, writes=("predictions/*.boxes.mp4",)),
    Rule(r"python -m retinanet predict .*", How.RUN, writes=("predictions/**/*.boxes.png",)),
    Rule(
        r"python - <<'END'.*scenes\.mp4.*END",
        How.BASH,
        needs=("runs/demo", "predictions/found.json"),
        writes=("predictions/scenes.mp4",),
    ),
    Rule(r"head -n 3 predictions/\w+\.json", How.BASH, prints=("[",)),
    Rule(r"head -n 24 .*/MODEL_CARD\.md", How.BASH, prints=("object-detection", "mAP")),
    Rule(r"python -m retinanet export .*", How.RUN, prints=("checked by",)),
    Rule(r"\.venv/bin/tensorboard .*", How.BASH, more="--inspect", prints=("loss",)),
    Rule(r"python -m retinanet evaluate .*", How.RUN, prints=("mAP50",)),
    Rule(r"python -m retinanet convert --detector .* --trust", How.RUN, writes=("converted/*",)),
    Rule(r"python -m retinanet convert .* --trust", How.RUN),
    Rule(r"python -m retinanet convert .*", How.RUN, status=2),
    # MLPerf
    Rule(r"python -m retinanet mlperf submission .*", How.RUN, status=4),
    Rule(r"python -m retinanet mlperf (?:check|rcp) .*", How.RUN),
    Rule(r"python -m retinanet mlperf points .*", How.RUN),
    # oneDNN's own benchmark, built
    Rule(r"git clone .*", How.CANNOT, why="the internet"),
    Rule(r"(?:cmake|cp) .*build.*", How.CANNOT, why="oneDNN's sources; it takes 35 minutes"),
    # ranks
    Rule(r"lscpu .* > .*", How.BASH, writes=("node.txt",)),
    Rule(r"python -m launch plan .*--np 32", How.RUN, status=2),
    Rule(r"python -m launch plan .*", How.RUN),
    Rule(r"python -m launch run --np 7 .*", How.RUN, status=2),
    Rule(r"python -m launch run .*", How.RUN, instead=((r"launch run", "launch run --dry-run"),)),
    Rule(
        r"python -m launch scale .*",
        How.PARSED,
        why=OF_TESTS + "tests/profiling/studies/scale/test_scale_command.py",
    ),
    Rule(
        r"python -m launch groups .*",
        How.PARSED,
        why=OF_TESTS + "tests/profiling/studies/async_groups/test_groups_command.py",
    ),
    Rule(
        r"python -m launch tune .*--measure-hosts .*",
        How.PARSED,
        why="two hosts; tests/profiling/studies/tune/test_named_hosts.py",
    ),
    Rule(
        r"python -m launch tune --plan coco\.json .*",
        How.PARSED,
        why="it trains; tests/profiling/studies/tune/test_trained_data.py",
    ),
    Rule(
        r"python -m launch tune --plan scenes\.json .*--probe .*",
        How.RUN,
        unlike=("measured: ", "probe ", "  global batch "),  # all have been trained already
    ),
    Rule(r"python -m launch tune .*", How.RUN),
    # profiling
    Rule(
        r"python -m profiling trace .*",
        How.RUN,
        unlike=("oneDNN itself: convolution", "hardly fragmented"),
    ),
    Rule(
        r"python -m profiling stats (?!.*--peaks).*--out .*",
        How.RUN,
        more="--peaks peaks.json",  # to measure them takes half a minute
    ),
    Rule(r"python -m profiling (?:stats|compare) .*", How.RUN),
    Rule(r"python -m profiling benchdnn .*", How.RUN, more=QUICK_REPLAY),
    Rule(
        r"python -m profiling efficiency .* --no-cold .*",
        How.RUN,
        more="--repeats 1 --peaks none",
        writes=("runs/efficiency/replay.json",),
        prints=("efficiency:",),
    ),
    Rule(
        r"python -m profiling efficiency .*",
        How.RUN,
        more="--replay replay/replay.json --peaks none",
        prints=("efficiency:",),
    ),
    Rule(r"python -m profiling report runs/after .*", How.RUN, more="--peaks none"),
    Rule(r"python -m profiling report .*--peaks .*", How.RUN, writes=("report.html",)),
    Rule(r"python -m profiling report .*", How.RUN, more="--peaks none", writes=("report.html",)),
    Rule(r"python -m profiling peaks.*", How.PARSED, why=OF_TESTS + "tests/profiling"),
    Rule(r"python -m profiling layers .*", How.PARSED, why=OF_TESTS + "tests/profiling/layers"),
    Rule(
        r"python -m profiling bench log",
        How.RUN,
        more="--lines 2000 --problems 20",
        unlike=("┃ what",),  # targets are of the size that a page shows
    ),
    Rule(r"python -m profiling bench metric", How.RUN, more="--images 20 --found 10"),
    Rule(r"python -m profiling bench index", How.RUN, more="--images 200 --boxes 900 --ranks 1"),
    Rule(r"python -m profiling bench .*", How.PARSED, why=OF_TESTS + "tests/profiling/bench"),
    Rule(r"python -m profiling ablate list", How.RUN),
    Rule(r"python -m profiling ablate run.*", How.PARSED, why=OF_TESTS + "tests/profiling/ablate"),
    Rule(
        r"python -m profiling ablate report --quick",
        How.RUN,
        needs=("runs/ablations/quick",),
        writes=("runs/ablations/quick/ablations.html", "runs/ablations/quick/ablations.md"),
    ),
    Rule(r"python -m tests\.structure", How.RUN),
    Rule(r"python -m tests\.torture .*", How.PARSED, why=OF_TESTS + "tests/test_torture.py"),
)


def rule_of(command: Command) -> Rule | None:
    """The first that fits."""
    text = plain(command.text)
    return next((rule for rule in RULES if re.fullmatch(rule.of, text, re.DOTALL)), None)


def plain(text: str) -> str:
    """The command that rules look at: whichever way Python is written."""
    return re.sub(r"(?:\.venv/bin/)(?=python )", "", text)


NAME = re.compile(
    r"python -m (?:data|launch|profiling|retinanet)(?: [a-z][a-z-]*){0,2}(?: --[a-z-]+)*(?: …)?|"
    r"train\.py|make|\.venv/bin/(?:python|mpirun)|mpirun|srun|torchrun|docker [a-z]+"
)
"""A command's name, perhaps with an option's: what it does without further words is not meant."""


def is_a_name(command: Command) -> bool:
    """Whether a page only names a command, in the middle of a sentence."""
    return command.is_inline and bool(NAME.fullmatch(plain(command.text)))
