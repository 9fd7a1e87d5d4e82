"""The worker's side of `profiling.bench.worker_process`: answer questions until there are no more.

The specification is JSON, the process's only argument. Questions come as lines on standard input;
each is answered by a line of JSON on what was standard output at the start. The process ends with
its input, so that it never outlives who asks.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from retinanet.errors import InputError

Answering = Callable[[str], object]


def serve(
    settle: Callable[[dict[str, Any]], None],
    prepare: Callable[[dict[str, Any]], tuple[Mapping[str, Any], Answering]],
) -> None:
    """Settle, prepare, then answer.

    Args:
        settle: Told the specification before torch is loaded; may start this command again.
        prepare: Told it afterwards; gives the worker's facts, and what answers a question.
    """
    specification = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)

    def answer(content: object) -> None:
        answers.write(json.dumps(content) + "\n")

    try:
        settle(specification)  # where the command starts again, the pipes must be where they were
        os.dup2(2, 1)  # what libraries print must not mix with the answers
        facts, answer_of = prepare(specification)
        answer({"facts": dict(facts)})
        for question in sys.stdin:
            answer(answer_of(question.strip()))
    except Exception as error:  # told to the parent, which ends the work with it
        first_line = str(error).strip().split("\n", maxsplit=1)[0]
        is_input = isinstance(error, InputError)
        kind = "" if is_input else f"{type(error).__name__}: "
        answer({"error": kind + first_line, "is_input": is_input})
        raise
