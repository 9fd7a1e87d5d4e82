"""Who has started whom."""

from pathlib import Path

from launch.host.proc_files import read_status, read_text

SHELLS = ("sh", "bash", "dash", "ksh", "zsh")


def children_of(process: int) -> list[int]:
    """The processes that it has started and that have not ended; none where Linux hides them."""
    text = read_text(Path(f"/proc/{process}/task/{process}/children"))
    return [int(word) for word in text.split()]


def below_scripts(process: int, number: int) -> int:
    """The process, or what it has started if it is a shell that signal `number` would end.

    Such as Intel MPI's mpirun: a script, whose ranks would go on.
    """
    while would_end_shell(process, number) and (children := children_of(process)):
        process = children[0]
    return process


def would_end_shell(process: int, number: int) -> bool:
    """Whether it is a shell that has no trap for the signal."""
    folder = Path(f"/proc/{process}")
    caught = int(read_status(folder / "status").get("SigCgt", "0"), 16)
    try:
        is_shell = (folder / "exe").readlink().name in SHELLS
    except OSError:  # it has ended
        return False
    return is_shell and not caught & 1 << number - 1
