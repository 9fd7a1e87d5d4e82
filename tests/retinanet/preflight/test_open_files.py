import resource

from retinanet.preflight.host import check_open_files


def test_every_loaded_tensor_is_a_file() -> None:
    assert check_open_files(924, limit=1024).level == "ok"
    found = check_open_files(925, limit=1024)
    assert found.level == "warning" and found.fix == "ulimit -n 2050, or lower data.workers"


def test_this_process_has_a_limit_of_its_own() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert check_open_files(0).level == ("ok" if soft == -1 or soft >= 100 else "warning")
