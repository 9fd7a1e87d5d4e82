"""The optional packages of `make serving`."""

from importlib.util import find_spec

from retinanet.errors import InputError


def require_packages(*names: str, purpose: str) -> None:
    """See that packages of requirements-serving.txt are there.

    Args:
        names: As they are imported.
        purpose: What needs them, for the message.

    Raises:
        InputError: One is not installed.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{purpose}: {' and '.join(missing)} not installed; run `make serving`, which adds the "
            "packages of requirements-serving.txt"
        )
