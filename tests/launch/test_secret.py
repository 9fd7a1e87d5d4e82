"""The secret of a job: who gets it, and what is believed without it."""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from common.errors import InputError
from launch.ranks import Ranks
from launch.secret import GIVEN, VARIABLE, JobSecret, SealedStore, read_file, shared_secret
from launch.waiting import Wait

KEY = b"0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def agree(store: dist.Store, rank: int, folder: Path | None, wait: Wait | None = None) -> Any:
    ranks = Ranks(rank=rank, size=2, local_rank=0, local_size=1, launcher="torchrun")
    wait = wait or Wait("", advice="")
    return shared_secret(store, ranks, known=b"", folder=folder, wait=wait)


@contextmanager
def both(store: dist.Store, here: Path, there: Path) -> Iterator[tuple[JobSecret, JobSecret]]:
    with agree(store, 0, here) as first, agree(store, 1, there) as other:
        yield first, other


def keys_seen(store: dist.Store, secret: bytes) -> list[str]:
    names = ["secret", "secret's source", "secret is wanted", "watch key"]
    return [name for name in names if store.check([name]) and secret in store.get(name)]


def test_a_private_file_carries_the_secret_and_is_removed(tmp_path: Path) -> None:
    store, folder = dist.HashStore(), tmp_path / "runs" / "new"
    before = os.umask(0o277)
    try:
        with both(store, folder, tmp_path / "runs" / "other") as (first, other):
            [file] = tmp_path.iterdir()
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert first.value == other.value and len(first.value) == 64
            assert keys_seen(store, first.value) == [] and not first.was_given
            assert first.value.decode() not in repr((first, SealedStore(store=store, secret=KEY)))
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_the_limit_removes_the_file(tmp_path: Path) -> None:
    wait = Wait("", advice="")
    with agree(dist.HashStore(), 0, tmp_path, wait):
        assert len(list(tmp_path.iterdir())) == 1
        wait.clean_up()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["link", "mode", "owner", "fifo", "content", "folder"])
def test_file_that_others_may_have_made_is_not_read(case: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"a" * 64)
    file.chmod(0o600)
    assert read_file(file) == b"a" * 64
    if case == "mode":
        file.chmod(0o640)
    elif case == "owner":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(file, 12345, 12345)
    elif case == "content":
        file.write_bytes(b"a" * 63 + b"\n")
    else:
        file.rename(tmp_path / "other")
        make = {"link": lambda: file.symlink_to("other"), "fifo": lambda: os.mkfifo(file, 0o600)}
        make.get(case, file.mkdir)()
    try:
        assert read_file(file) is None
    except OSError:
        assert case in ("link", "folder")


def test_hosts_without_a_common_drive_get_the_secret_with_a_note(tmp_path: Path) -> None:
    store = dist.HashStore()
    other: list[bytes] = []

    def join() -> None:
        with agree(store, 1, elsewhere) as secret:
            other.append(secret.value)

    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    with agree(store, 0, here) as first:
        thread = threading.Thread(target=join, daemon=True)
        thread.start()
        while not first.was_given:
            first.answer()
        thread.join(10)
    assert other == [first.value] and keys_seen(store, first.value) == [GIVEN]


def test_the_variable_carries_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setenv(VARIABLE, KEY.decode())
    with both(store, tmp_path, tmp_path) as (first, other):
        assert first.value == other.value == KEY
        assert list(tmp_path.iterdir()) == [] and keys_seen(store, KEY) == []
        store.set("secret is wanted", "")
        first.answer()
        assert keys_seen(store, KEY) == []


def test_short_or_missing_variable_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(InputError, match=f"^{VARIABLE}: has 5 letters; give 16"):
        agree(dist.HashStore(), 0, tmp_path).__enter__()
    for first, other in (("", KEY.decode()), (KEY.decode(), "")):
        store = dist.HashStore()
        monkeypatch.setenv(VARIABLE, first)
        with agree(store, 0, tmp_path):
            monkeypatch.setenv(VARIABLE, other)
            with pytest.raises(InputError, match=rf"^{VARIABLE}: .* set it for all ranks$"):
                agree(store, 1, tmp_path).__enter__()


def test_only_values_sealed_under_their_name_are_believed() -> None:
    store = dist.HashStore()
    sealed = SealedStore(store=store, secret=KEY)
    sealed.set("results/1", [1.5])
    assert sealed.get("results/1", list[float]) == [1.5]
    store.set("results/2", store.get("results/1"))  # type: ignore[arg-type]
    store.set("results/3", "[[2.5]]")
    SealedStore(store=store, secret=b"another one of 16").set("results/4", [1.5])
    store.set("results/5", store.get("results/1") + b" ")  # type: ignore[arg-type]
    for number in (2, 3, 4, 5):
        with pytest.raises(InputError, match="was not written by a rank of this job"):
            sealed.get(f"results/{number}", list[float])
