"""`python -m retinanet convert`: weights from a `.pth` as safetensors, once."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save

from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_outputs, write_whole
from retinanet.printable import printable
from retinanet.training.pickled_weights import PickledWeights, is_imagenet_file, unpickle_weights

NAMES_SHOWN = 5


def convert(*, file: Path, out: Path, trust: bool, overwrite: bool) -> int:
    """Write the tensors of a `.pth` to a safetensors file, and say what was left out.

    Args:
        file: torch's file: a state_dict, alone or under `model` or `state_dict`.
        out: Where they go; its name ends in `.safetensors`.
        trust: Whether the user trusts whoever made `file`. torchvision's own file needs no word.
        overwrite: Whether `out` may be replaced.

    Raises:
        InputError: The file is not trusted, cannot be read or holds no weights, or `out` exists.
    """
    if out.suffix != ".safetensors":
        raise InputError(f"--out: {out}: expected a name that ends in .safetensors")
    require_free_outputs([out], overwrite=overwrite)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    known = is_imagenet_file(content)
    if not trust and not known:
        raise InputError(
            f"{file}: is a pickle, which can run code as it is loaded: torch's weights_only=True, "
            "by which it is read here, has a known hole before torch 2.10 (CVE-2026-24747); "
            "nothing was read; if you trust whoever made the file, give --trust"
        )
    weights = unpickle_weights(content, file)
    written = save(weights.tensors, metadata={"format": "pt"})
    write_whole(out, written)
    print("\n".join(told(file, content, weights, is_known=known)))
    digest = hashlib.sha256(written).hexdigest()
    print(f"{out}: {len(weights.tensors):,} tensors, {len(written):,} bytes, sha256 {digest}")
    return FINISHED


def told(file: Path, content: bytes, weights: PickledWeights, *, is_known: bool) -> list[str]:
    """What was read and what of it was dropped, line by line."""
    origin = "torchvision's, by its SHA-512" if is_known else "unpickled because you said --trust"
    digest = hashlib.sha256(content).hexdigest()
    lines = [f"{file}: {len(content):,} bytes, sha256 {digest}, {origin}"]
    if weights.renamed:
        lines.append(f"renamed: {weights.renamed:,} tensors, from older spellings of their names")
    if weights.dropped:
        lines.append(f"dropped, being no tensors: {shown(weights.dropped)}")
    return [printable(line) for line in lines]


def shown(names: Sequence[str]) -> str:
    """The first few names."""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(name[:60] for name in names[:NAMES_SHOWN]) + more
