"""Files of weights, which may be hostile: .safetensors, and torch's own (`.pth`).

Torch's files are pickles: programs that build objects. `weights_only=True` lets such a program
build tensors and plain containers only, but torch before 2.10 has a known hole (CVE-2026-24747): a
file made for it can corrupt memory and so run code. So such files are read here alone, for
`retinanet convert` and for the files of torchvision's that are known by their hashes.
"""

import argparse
import hashlib
import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from common.errors import InputError, printable
from common.files import or_unreadable, read_bytes
from common.wording import listed
from retinanet.config_types import STATE_FILE
from retinanet.model.retinanet import current_key
from retinanet.training.published import published_name

AVERAGES = ("model_ema", "ema_model", "ema", "state_dict_ema", "ema_state_dict")
"""Keys of a moving average of the weights: torchvision's, and those of other trainers."""
WRAPPINGS = ("model", "state_dict", "model_state_dict", *AVERAGES)
"""Keys under which training scripts save a state_dict, the first that is there: torchvision's and
MLPerf's, Lightning's, torch's tutorials', then the averages."""
UPDATES = "n_averaged"  # The number of updates, which an average has beside its tensors

LARGEST_RATIO = 4
"""Limit of the tensors' bytes relative to the file's; tensors that share memory are copied."""
NAMES_SHOWN = 5
MOST_BYTES = 8_000_000_000
"""Size limit of a `.pth`: a detector and its optimizer's state take half a gigabyte."""
REFUSED_GLOBAL = re.compile(r"GLOBAL (\S+)")
"""Part of torch's message about a function that the pickle would have called."""
ARCHIVE = b"PK\x03\x04"
"""The beginning of torch's present format, by which torch.load tells it from the older one."""
NOT_TORCHS = "is not a file of torch.save, or is truncated or damaged; download it again"

MOST_TENSORS = 10_000  # A detector has 400 to 600 tensors, its optimizer's state up to 600


def read_safetensors(
    file: Path, *, most_tensors: int = MOST_TENSORS
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the texts of a .safetensors file.

    The file is mapped as long as one of the tensors lives.

    Raises:
        InputError: It cannot be read, or has more than `most_tensors`.
    """
    try:
        with safe_open(file, framework="pt") as content:
            # Before any is made: a hundred thousand take seven seconds.
            if (count := len(content.keys())) > most_tensors:
                raise InputError(  # noqa: TRY301
                    f"{file}: has {count:,} tensors, more than the {most_tensors:,} that are read; "
                    "give the file of a detector or of a backbone"
                )
            return {name: content.get_tensor(name) for name in content.keys()}, {  # noqa: SIM118
                **(content.metadata() or {})
            }
    except InputError:
        raise
    except Exception as error:  # OSError, SafetensorError, and what a hostile header may cause
        reason = str(error).strip().split("\n", maxsplit=1)[0][:160]
        raise InputError(f"{file}: cannot be read: {reason}") from error


@dataclass(frozen=True)
class PickledWeights:
    """The weights in a file."""

    tensors: dict[str, Tensor]  # Dense, each with memory of its own, under today's names
    renamed: int  # Number of names in an older spelling; see `retinanet.model.retinanet`
    dropped: tuple[str, ...]  # Names of other entries of the file, which are not tensors
    wrapping: str = ""  # The key of the state_dict


def read_pickle(file: Path, *, trust: bool) -> tuple[PickledWeights, list[str], str | None]:
    """Return a file's weights, lines about them, and its name if it is torchvision's.

    That needs no `trust`.

    Raises:
        InputError: It cannot be read, is not trusted, or holds no weights.
    """
    if file.is_dir():
        raise InputError(f"{file}: {problem_of_folder(file)}")
    with or_unreadable(file):
        content = read_bytes(file, most_bytes=MOST_BYTES)
    published = published_name(content)
    if not trust and not published:
        raise InputError(
            f"{file}: is a pickle, which can run code when it is loaded: torch's weights_only=True "
            "has a known vulnerability before torch 2.10 (CVE-2026-24747); nothing was read; if "
            "you trust the author of the file, give --trust"
        )
    weights = unpickle_weights(content, file)
    return weights, describe_weights(file, content, weights, published=published), published


def problem_of_folder(folder: Path) -> str:
    """Return why a folder is no `.pth`, and what to do with it."""
    if (folder / STATE_FILE).is_file() or (folder / "checkpoints").is_dir():
        return (
            "is a checkpoint or a run already; evaluate, predict, export and model.weights take "
            "it as it is"
        )
    return "is a folder; give a .pth file"


def unpickle_weights(content: bytes, file: Path) -> PickledWeights:
    """Load a state_dict, bare or under one of `WRAPPINGS`. The bytes must be trusted.

    Raises:
        InputError: They are no such file, or hold no dense tensors under names.
    """
    limit = len(content)
    # torch.load allocates the sizes that the archive states, so check them first: torch.save does
    # not compress, hence a larger size than the file's is a decompression bomb.
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
            is_program = any(name.endswith("/constants.pkl") for name in archive.namelist())
    except Exception as error:  # torch's older format, or a damaged archive
        if content.startswith(ARCHIVE):
            raise InputError(f"{file}: cannot be read: {NOT_TORCHS}") from error
        size, is_program = 0, False
    is_archive = size > 0
    if is_program:
        raise InputError(
            f"{file}: is a TorchScript program, not a state_dict; convert the checkpoint that it "
            "was made from"
        )
    if size > limit:
        raise InputError(
            f"{file}: inflates to {size:,} bytes from {limit:,}; "
            "save it again with torch.save, which does not compress"
        )
    try:
        require_simple_pickle(content, file)
        # torchvision's and MLPerf's scripts save their command line beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # a damaged pickle fails with whatever its bytes happen to mean
        reason = load_failure(error, is_archive=is_archive)
        raise InputError(f"{file}: cannot be read: {reason}") from error
    entries: Mapping[Any, Any] = loaded if isinstance(loaded, dict) else {}
    dropped: list[str] = []
    there = (name for name in WRAPPINGS if isinstance(entries.get(name), dict))
    if wrapping := next(there, ""):
        dropped = [shown_key(name) for name in entries if name != wrapping]
        entries = entries[wrapping]
    given = {
        name: value
        for name, value in entries.items()
        if isinstance(value, Tensor) and name != UPDATES
    }
    dropped += [shown_key(name) for name in entries if name not in given]
    if not given or not all(isinstance(name, str) for name in given):
        raise InputError(f"{file}: contains no state_dict; save model.state_dict()")
    # Tensors that share a storage, or have a stride of 0, declare more values than the file has.
    # `dense` copies each of them, so a small file could fill the memory.
    if sum(min(_size(value), limit) for value in given.values()) > LARGEST_RATIO * limit:
        raise InputError(f"{file}: declared size of tensors exceeds the file; it is damaged")
    names = current_names(given)
    return PickledWeights(
        {names[name]: dense(value, name, file, limit) for name, value in given.items()},
        renamed=sum(new != old for old, new in names.items()),
        dropped=tuple(dropped),
        wrapping=wrapping,
    )


MOST_VALUES = 1_000_000  # Of a pickle, each use counted; a detector and its optimizer have 50,000
MOST_IN_TUPLE = 10_000  # Values in a tuple, and in the tuples in it
PICKLES_OF_OLD_FORMAT = 5
REFUSED_CALLS = ("bytearray", "encode")
"""Functions that torch permits: one fills memory without limit, one can take hours."""
BUILT_IN_PLACE = ("APPEND", "SETITEM", "BUILD")


def require_simple_pickle(content: bytes, file: Path) -> None:
    """Refuse pickles that would take minutes or end the process, before torch reads them.

    To use a tuple as a key, Python visits all values in it, by a recursion in C that nothing
    limits: a million tuples within each other overflow the stack, and forty, each twice in the
    next, take days. So the values in each tuple are counted, without building any of them.

    Raises:
        InputError: There are too many values, or too many in a tuple.
    """
    stream, count = io.BytesIO(content), 0
    if content.startswith(ARCHIVE):
        # By torch's reader: unlike zipfile it takes an archive whose checksums are wrong.
        stream = io.BytesIO(torch._C.PyTorchFileReader(stream).get_record("data.pkl"))
    try:
        for _ in range(PICKLES_OF_OLD_FORMAT):
            count = count_values(stream, file, count)
    except (ValueError, LookupError) as error:  # not a pickle, or damaged: torch reports it
        if isinstance(error, InputError):
            raise


def count_values(stream: io.BytesIO, file: Path, count: int) -> int:
    """Return `count` and the values of the next pickle; see `require_simple_pickle`."""
    # A value's size stands for it: 1, and for a tuple the sizes of what is in it.
    stack: list[int] = []
    below: list[list[int]] = []  # The stacks below the marks
    stored: dict[Any, int] = {}
    for opcode, argument, _ in pickletools.genops(stream):
        count += 1
        match opcode.name:
            case "GLOBAL" if (called := str(argument)).rpartition(" ")[2] in REFUSED_CALLS:
                what = f"{called.replace(' ', '.')[:100]}, which is"
                raise InputError(f"{file}: cannot be read: {not_weights(what)}")
            case "BINGET" | "LONG_BINGET":
                stack.append(stored[argument])
                count += stored[argument]
            case "BINPUT" | "LONG_BINPUT":
                stored[argument] = stack[-1]
            case "MARK":
                below.append(stack)
                stack = []
            case "APPENDS" | "SETITEMS":
                stack = below.pop()
            case "TUPLE":
                items, stack = stack, below.pop()
                stack.append(1 + sum(items))
            case name:
                taken = [stack.pop() for _ in opcode.stack_before]
                if opcode.stack_after:
                    stack.append(taken[-1] if name in BUILT_IN_PLACE else 1 + sum(taken))
        if count > MOST_VALUES or (stack and stack[-1] > MOST_IN_TUPLE):
            raise InputError(
                f"{file}: has more than {MOST_VALUES:,} values, or {MOST_IN_TUPLE:,} in tuples; "
                "save the model's state_dict() alone"
            )
    return count


def current_names(names: Iterable[str]) -> dict[str, str]:
    """Return the present spelling of each name of a tensor, see `current_key`."""
    current = {name: current_key(name) for name in names}
    # The file has a tensor under both spellings of its name: both are kept, and the model refuses
    # the unknown one.
    both = len(set(current.values())) < len(current)
    return {name: name for name in current} if both else current


def shown_key(key: object) -> str:
    """Return the key of an entry; tuples, which may be in each other, by their type alone."""
    return str(key) if isinstance(key, str | int) else type(key).__name__


def load_failure(error: Exception, *, is_archive: bool) -> str:
    """Return why torch.load failed; `is_archive`: on a complete archive, as torch.save writes it.

    Its own messages are for programmers: pages of advice, or names in its code.
    """
    refused = REFUSED_GLOBAL.search(str(error))
    if refused or (is_archive and isinstance(error, pickle.UnpicklingError)):
        return not_weights(f"{refused[1][:100]}, which is" if refused else "what is")
    if isinstance(error, MemoryError) or "tried to allocate" in str(error):
        return "this machine has too little free memory for it"
    return NOT_TORCHS


def not_weights(what: str) -> str:
    """Return why a file is not read; `what` is found in it."""
    return (
        f"holds {what} neither a tensor nor a plain container, and may be code; save the model's "
        "state_dict() alone"
    )


def describe_weights(
    file: Path, content: bytes, weights: PickledWeights, *, published: str | None
) -> list[str]:
    """Return lines about what was read and what was dropped."""
    origin = (
        f"torchvision's {published}, by its hash" if published else "unpickled, because of --trust"
    )
    digest = hashlib.sha256(content).hexdigest()
    lines = [f"{file}: {len(content):,} bytes, sha256 {digest}, {origin}"]
    if weights.wrapping in AVERAGES:
        lines.append(f"taken: {weights.wrapping}, a moving average of the weights")
    lines += [
        f"not taken: {name}, a moving average of the weights, beside the weights"
        for name in AVERAGES
        if name in weights.dropped
    ]
    if weights.renamed:
        lines.append(f"renamed: {weights.renamed:,} tensors, from older spellings of their names")
    if weights.dropped:
        shown = listed((name[:60] for name in weights.dropped), NAMES_SHOWN)
        lines.append(f"dropped, not tensors: {shown}")
    return [printable(line) for line in lines]


def _size(value: Tensor) -> int:
    return value.numel() * value.element_size()


def dense(value: Tensor, name: str, file: Path, limit: int) -> Tensor:
    """Return a tensor in the form of safetensors: contiguous, without shared memory.

    Raises:
        InputError: It is sparse or quantized, or needs more bytes than `limit`, the file's.
    """
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise InputError(f"{file}: {name}: not a dense tensor; save the model's plain state_dict()")
    if _size(value) > limit:
        raise InputError(f"{file}: {name}: its declared size exceeds the file; it is damaged")
    return value.detach().clone(memory_format=torch.contiguous_format)
