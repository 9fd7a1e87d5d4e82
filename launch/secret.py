"""The secret of a job: ranks that have it believe each other's messages.

A rank proves by it that it belongs to the job, to the watchdog and for what it leaves in the store,
which has no authentication of its own. So the secret does not go through the store: mpirun's ranks
exchange it by MPI; others take it from a variable of the user's, or from a file that only this user
can read, near the folder of the run.
"""

import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import InputError
from common.files import create_file
from launch.messages import decode, encode
from launch.ranks import Ranks
from launch.waiting import Wait

if TYPE_CHECKING:
    from torch.distributed import Store

VARIABLE = "RETINANET_JOB_SECRET"
LEAST_LETTERS = 16
BY_VARIABLE = "variable"
NAME = re.compile(r"\.retinanet-secret-[0-9a-f]{16}")
HEXADECIMAL = re.compile(rb"[0-9a-f]{64}")
SOURCE, WANTED, GIVEN = "secret's source", "secret is wanted", "secret"
"""Keys in the store."""
MAC_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class SealedStore:
    """Values in a job's store that only its ranks can have left there."""

    store: "Store"
    secret: bytes = field(repr=False)

    def set(self, name: str, value: Any) -> None:
        """Leave a value, see `launch.messages.encode`."""
        content = encode(value)
        self.store.set(name, self._mac(name, content) + content)  # type: ignore[arg-type]

    def get(self, name: str, kind: Any) -> Any:
        """Wait for a value and return it; for its `kind` see `launch.messages.decode`.

        Raises:
            InputError: It is no such value, or not from a rank of this job.
            RuntimeError: The connection to the store has ended.
        """
        message = self.store.get(name)
        mac, content = message[:MAC_BYTES], message[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(name, content)):
            raise InputError(
                f"the job's store: {name}: was not written by a rank of this job, or by one with "
                f"another secret; set {VARIABLE} to one text for all ranks, and keep others out of "
                "the network of the job"
            )
        return decode(content, kind, sender=f"the job's store ({name})")

    def _mac(self, name: str, content: bytes) -> bytes:
        # With the name, so that nobody can put a value of this job in another one's place.
        return hmac.digest(self.secret, name.encode() + b"\0" + content, "sha256")


@contextmanager
def shared_secret(
    store: "Store",
    ranks: Ranks,
    *,
    known: bytes,
    folder: Path | None,
    wait: Wait,
) -> Iterator["JobSecret"]:
    """Agree on the secret; a file that carries it exists only while the context lasts.

    `known`: the secret, if MPI has carried it. The file is in the `folder`, or in the nearest of
    its parents that exists; None: in the system's folder for temporary files.

    Raises:
        InputError: The variable is too short, or some ranks have it and others not.
    """
    given = os.environ.get(VARIABLE, "").encode()
    if known:
        yield JobSecret(value=known)
        return
    if given and len(given) < LEAST_LETTERS:
        raise InputError(
            f"{VARIABLE}: has {len(given)} letters; give {LEAST_LETTERS} or more random ones, such "
            "as the output of openssl rand -hex 32"
        )
    if not ranks.is_first:
        yield JobSecret(value=read_secret(store, given=given, folder=folder))
        return
    if given:
        store.set(SOURCE, BY_VARIABLE)
        yield JobSecret(value=given)
        return
    value = secrets.token_hex(32).encode()
    file = write_file(value, nearest_folder(folder))
    remove = partial(file.unlink, missing_ok=True) if file else wait.clean_up
    wait.clean_up = remove  # the end of the limit leaves no file behind
    try:
        store.set(SOURCE, file.name if file else "")
        yield JobSecret(value=value, store=store)
    finally:
        remove()


@dataclass(kw_only=True)
class JobSecret:
    """The secret, and on rank 0 the answer to ranks that do not see its file."""

    value: bytes = field(repr=False)
    store: "Store | None" = None
    was_given: bool = False
    """Whether it went through the store, where everybody who reached its port could read it."""

    def answer(self) -> None:
        """Give the secret to a rank that asked for it; rank 0 calls it while others connect."""
        if self.store is not None and not self.was_given and self.store.check([WANTED]):
            self.store.set(GIVEN, self.value.decode())
            self.was_given = True


def read_secret(store: "Store", *, given: bytes, folder: Path | None) -> bytes:
    """Return the secret on another rank than 0."""
    source = store.get(SOURCE).decode("ascii", "replace")
    if (source == BY_VARIABLE) != bool(given):
        one, other = ("this rank", "rank 0") if given else ("rank 0", "this rank")
        raise InputError(f"{VARIABLE}: {one} has it and {other} has not; set it for all ranks")
    if given:
        return given
    if NAME.fullmatch(source):
        nearest = nearest_folder(folder)
        for place in (nearest, *nearest.parents):
            with suppress(OSError):
                if content := read_file(place / source):
                    return content
    # Hosts without a common drive.
    store.set(WANTED, "")
    return store.get(GIVEN)


def nearest_folder(folder: Path | None) -> Path:
    """Return a folder, or the nearest of its parents that exists."""
    if folder is None:
        return Path(tempfile.gettempdir())
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def write_file(content: bytes, folder: Path) -> Path | None:
    """Create a file that only this user can read; None if it cannot be created."""
    file = folder / f".retinanet-secret-{secrets.token_hex(8)}"
    try:
        with create_file(file, mode=0o600) as stream:
            os.fchmod(stream.fileno(), 0o600)  # whatever the umask is
            stream.write(content)
    except OSError:
        return None
    return file


def read_file(file: Path) -> bytes | None:
    """Return a secret, if the file is this user's and was only this user's to read or write.

    Raises:
        OSError: It cannot be opened.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        is_private = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
        if not is_private or status.st_uid != os.geteuid():
            return None
        content = stream.read(65)
    return content if HEXADECIMAL.fullmatch(content) else None
