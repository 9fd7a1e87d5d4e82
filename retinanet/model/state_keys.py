"""Names of parameters in checkpoints: older spellings are turned into today's."""

import re
from typing import Any

_OLD_TOWER = re.compile(r"(head\.(?:classification|regression)_head\.conv)\.(\d+)\.(weight|bias)")
_OLD_PYRAMID = re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)")

_TOWER = re.compile(r"(head\.(?:classification|regression)_head\.conv)\.(\d+)\.0\.(weight|bias)")
_PYRAMID = re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.0\.(weight|bias)")


def current_key(key: str) -> str:
    """Today's spelling of a parameter's name; a name that is not an old one stays as it is.

    Old are `module.` in front (written by DistributedDataParallel), towers in which convolutions
    and ReLUs were counted together (`conv.2.weight`, today `conv.1.0.weight`) and pyramid blocks
    without an inner index (`inner_blocks.0.weight`, today `inner_blocks.0.0.weight`). The latter
    two come from older torchvision releases and from models copied out of them.
    """
    key = key.removeprefix("module.")
    if tower := _OLD_TOWER.fullmatch(key):
        return f"{tower[1]}.{int(tower[2]) // 2}.0.{tower[3]}"
    if block := _OLD_PYRAMID.fullmatch(key):
        return f"{block[1]}.0.{block[2]}"
    return key


def mlperf_key(key: str) -> str:
    """The old spelling of a parameter's name, as MLPerf's reference implementation has it."""
    if tower := _TOWER.fullmatch(key):
        key = f"{tower[1]}.{int(tower[2]) * 2}.{tower[3]}"
    elif block := _PYRAMID.fullmatch(key):
        key = f"{block[1]}.{block[2]}"
    return f"module.{key}"


def rename_old_keys(state_dict: dict[str, Any], prefix: str) -> None:
    """Rename old spellings in place, among the keys that start with `prefix`.

    Where both spellings of a name are there the old one stays, for strict loading to object to.
    """
    for key in [key for key in state_dict if key.startswith(prefix)]:
        new_key = prefix + current_key(key.removeprefix(prefix))
        if new_key not in state_dict:
            state_dict[new_key] = state_dict.pop(key)
