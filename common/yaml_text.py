"""YAML from users and from other programs, read safely.

The language has means to make a small text large ("billion laughs"), or to build objects. A text is
parsed with bounds, into what JSON could hold.
"""

import json
from collections.abc import Collection
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.tag import Tag

from common.errors import InputError

LONGEST_TEXT = 100_000  # Characters
MOST_BRACKETS = 500  # The parser takes seconds for a few thousand nested ones
MOST_VALUES = 10_000  # A value counts again for each alias of it
MOST_DEPTH = 20  # Nesting of sections and lists


def read_yaml(text: str, source: str, *, texts: Collection[str] = ()) -> Any:
    """Parse YAML 1.2 safely: no objects, no duplicate keys, `1e-4` is a number.

    All values below the keys `texts` of the document stay as written: `007` is a text there.

    Raises:
        InputError: The text is not YAML, or holds more than JSON could (a list as a key, a section
            within itself); names the source and, where it is known, the line.
    """
    if len(text) > LONGEST_TEXT or text.count("[") + text.count("{") > MOST_BRACKETS:
        raise InputError(
            f"{source}: longer than {LONGEST_TEXT:,} characters, or more than {MOST_BRACKETS} "
            "brackets; this is not a configuration"
        )
    parser = YAML(typ="safe", pure=True)
    try:
        # Composed and constructed in two steps: nodes are counted before aliases become values.
        root = parser.compose(text)
        if root is None:
            return None
        require_few_values(root, source)
        keep_texts(root, texts)
        tree = parser.constructor.construct_document(root)
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = " ".join(str(error.problem).split())
        raise InputError(f"{source}{line}: not valid YAML: {problem}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        # Raised by `require_few_values`: an InputError is a ValueError.
        if isinstance(error, InputError):
            raise
        raise InputError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    try:
        # Dates, which YAML has and JSON does not, become text.
        json.dumps(tree, default=str)
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: expected sections and plain values: {error}") from error
    return tree


def keep_texts(root: Node, texts: Collection[str]) -> None:
    """Mark the scalars below some keys of a document as texts, before they become values."""
    pairs = root.value if isinstance(root, MappingNode) else []
    waiting = [value for key, value in pairs if key.value in texts]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ScalarNode):
            node.ctag = Tag(suffix="tag:yaml.org,2002:str")
        elif isinstance(node, MappingNode):
            waiting += [part for pair in node.value for part in pair]
        else:
            waiting += node.value


def require_few_values(root: Node, source: str) -> None:
    """Refuse documents that a few aliases or merge keys make large, before any is expanded.

    `b: [*a, *a, *a]` and so on grows exponentially, and `a: &a [*a]` has no end. The parsed text
    has each value once; here it counts again for each alias of it. `source` is for the message.
    """
    waiting, count, characters = [(root, 0)], 0, 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if isinstance(node, MappingNode):
            if not all(isinstance(key, ScalarNode) for key, _ in node.value):
                raise InputError(
                    f"{source}: expected sections and plain values: a key is not plain text"
                )
            waiting += [(value, depth + 1) for _, value in node.value]
            characters += sum(len(key.value) for key, _ in node.value)
        elif isinstance(node, SequenceNode):
            waiting += [(value, depth + 1) for value in node.value]
        else:
            characters += len(node.value)
        if count > MOST_VALUES or characters > LONGEST_TEXT or depth > MOST_DEPTH:
            raise InputError(
                f"{source}: expected sections and plain values: more than {MOST_VALUES:,} values, "
                f"{LONGEST_TEXT:,} characters or {MOST_DEPTH} levels; remove the aliases"
            )
