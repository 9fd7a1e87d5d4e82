"""The command as a process of its own, which is killed, stopped, and called again."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.data.download.datasets import coco, tree
from tests.data.download.server import Server, serving

ROOT = Path(__file__).parents[3]
COCO = coco(train=40, validation=8)


def start(server: Server, out: Path) -> subprocess.Popen[str]:
    words = ["coco", "--out", str(out), "--mirror", server.url, "--workers", "3"]
    return subprocess.Popen(
        [sys.executable, "-m", "data", "download", *words, "--pause", "0.01", "--timeout", "5"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_asked(server: Server, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while len(server.asked) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)


def test_killed_anywhere_and_called_again_it_ends_with_the_same_tree(tmp_path: Path) -> None:
    out, archive = tmp_path / "killed", "/annotations/annotations_trainval2017.zip"
    with serving(COCO) as server:
        server.fallback = lambda path: "slow"
        for asked in (1, 8, 30):  # in the zip, early and late in the images
            process = start(server, out)
            wait_until_asked(server, asked, process)
            time.sleep(0.07)  # two pieces of four have come
            process.kill()
            assert process.wait() == -signal.SIGKILL
        assert list(out.rglob("*.part"))
        there = len(list((out / "train2017").glob("*.jpg")))
        assert there > 10
        time.sleep(0.2)  # for what the killed process had asked last
        server.fallback, before = (lambda path: "serve"), len(server.asked)
        process = start(server, out)
        text, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert len(server.asked) - before == 48 - there
        assert "complete: " in text and not error
        whole = start(server, tmp_path / "whole")
        whole.communicate(timeout=60)
    assert tree(out) == tree(tmp_path / "whole")
    assert len(tree(out)) == 48 + 4  # the zip, two JSON files, the lock
    assert len(server.asked_for(archive)) >= 3


def test_a_signal_stops_it_soon_and_the_message_says_how_to_go_on(tmp_path: Path) -> None:
    with serving(COCO) as server:
        server.fallback = lambda path: "silent" if path.endswith(".jpg") else "serve"
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 75)):
            server.asked.clear()
            process = start(server, tmp_path)  # the zip and 3 images, then no zip
            wait_until_asked(server, 4 if number == signal.SIGINT else 3, process)
            second = start(server, tmp_path) if number == signal.SIGINT else None
            if second is not None:
                _, refusal = second.communicate(timeout=60)
                assert second.returncode == 2
                assert "another download is at work here" in refusal and refusal.count("\n") == 1
            process.send_signal(number)
            sent = time.monotonic()
            _, error = process.communicate(timeout=60)
            assert time.monotonic() - sent < 5 and process.returncode == status, error
            assert error.startswith("stopped; ") and error.count("\n") == 1
            assert f"-m data download coco --out {tmp_path}" in error
