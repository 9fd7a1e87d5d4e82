import resource

from retinanet.config_file import load_config
from retinanet.preflight.host import check_open_files


def test_every_loaded_tensor_is_a_file() -> None:
    words = ["data.workers=2", "training.batch_size=2", "evaluation.batch_size=8"]
    config = load_config("demo.yaml", words)
    # 100 files of the process, and 5 batches of each kind: pixels, and two tensors an image.
    wanted = 100 + 5 * (1 + 2 * 2) + 5 * (1 + 2 * 8)
    assert check_open_files(config, limit=wanted).level == "ok"
    found = check_open_files(config, limit=wanted - 1)
    assert found.level == "warning" and found.fix == "ulimit -n 420, or lower data.workers"


def test_this_process_has_a_limit_of_its_own() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    config = load_config("demo.yaml", ["data.workers=0"])
    assert check_open_files(config).level == ("ok" if soft == -1 or soft >= 100 else "warning")
