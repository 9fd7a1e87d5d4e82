"""`python -m retinanet convert`: weights from a `.pth` as safetensors, once."""

import hashlib
from pathlib import Path

from safetensors.torch import save

from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_outputs, write_whole
from retinanet.training.pickled_weights import read_trusted, told, unpickle_weights


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
    content, is_known = read_trusted(file, trust=trust)
    weights = unpickle_weights(content, file)
    written = save(weights.tensors, metadata={"format": "pt"})
    write_whole(out, written)
    print("\n".join(told(file, content, weights, is_known=is_known)))
    digest = hashlib.sha256(written).hexdigest()
    print(f"{out}: {len(weights.tensors):,} tensors, {len(written):,} bytes, sha256 {digest}")
    return FINISHED
