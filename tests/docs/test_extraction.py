"""Commands are extracted from pages, and their output is compared with the shown one."""

import pytest

from tests.docs.output import missing_lines
from tests.docs.pages import Command, page_commands, unmarked_commands
from tests.docs.rules import is_a_name, matching_rule

PAGE = """\
# A page: `make demo`, then `retinanet data verify --config NAME`, not `data/` nor `make_it`

```bash
make test    # minutes
.venv/bin/retinanet train --config coco.yaml \\
    data.root=/data/coco    # on two lines

for run in 0 1; do
    mpirun -np 2 retinanet train run.name=$run
done
```

```text
$ retinanet profile stats LOG \\
      --top 3
3 problems
$ ls '#1'
finished
next:
  .venv/bin/retinanet profile stats LOG
  a line that is none
```
"""


def test_commands_are_extracted_from_blocks_prompts_and_sentences() -> None:
    commands = list(page_commands(PAGE, "a.md"))
    assert {command.place: command.text for command in commands[:-2]} == {
        "a.md:4": "make test",
        "a.md:5": ".venv/bin/retinanet train --config coco.yaml data.root=/data/coco",
        "a.md:8": "for run in 0 1; do\n    mpirun -np 2 retinanet train run.name=$run\ndone",
        "a.md:14": "retinanet profile stats LOG --top 3",
        "a.md:17": "ls '#1'",
        "a.md:20": ".venv/bin/retinanet profile stats LOG",
    }
    inline = [command.text for command in commands if command.is_inline]
    assert inline == ["make demo", "retinanet data verify --config NAME"]
    shown = {command.text: command.shown for command in commands}
    assert shown["retinanet profile stats LOG --top 3"] == ("3 problems",)
    assert shown["ls '#1'"][0] == "finished" and shown["make test"] == ()


@pytest.mark.parametrize(
    "text", ["retinanet data verfy x.json", "retinanet trian", "make-believe", "docker-compose up"]
)
def test_unknown_command_has_no_rule(text: str) -> None:
    assert matching_rule(Command(text, "a.md:1")) is None


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("retinanet data verify", True),
        ("retinanet launch groups --whole", True),
        ("train.py", True),
        (".venv/bin/mpirun", True),
        ("python -m pip list", False),
        ("retinanet profile stats LOG", False),
        ("make demo", False),
    ],
)
def test_name_in_a_sentence_is_not_a_command(text: str, is_name: bool) -> None:
    assert is_a_name(Command(text, "a.md:1", is_inline=True)) == is_name
    assert not is_a_name(Command(text, "a.md:1"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("```\nmake test\n```\n", 1),
        ("```bash\nmake test\n```\n", 0),
        ("```text\nretinanet train\n```\n", 1),
        ("so:\n\n    mpirun -np 2 x\n", 1),
    ],
)
def test_unmarked_blocks_of_commands_are_found(text: str, count: int) -> None:
    assert len(unmarked_commands(text)) == count


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        ("steps   4 of 2 ranks", "steps 6 of 1", False),
        ("steps   4 of 2 ranks", "epochs 4", True),
        ("error: backbone.pth: is a pickle", "error: backbone.pth: is a file", True),
        ("page: report.html, 0.6 MB; open it", "page: report.html, 1 MB", False),
        ("┃ ranks ┃ threads ┃", "┃ ranks ┃\n┃ threads ┃", False),
        ("┃ ranks ┃ threads ┃", "┃ ranks ┃ cores ┃", True),
        ("│ 1 │ a number │", "", False),
        ("12 hosts", "", False),
        ("note: slow", "", False),
    ],
)
def test_shown_line_is_printed_if_its_words_are(shown: str, printed: str, missing: bool) -> None:
    assert bool(missing_lines([shown], printed, unlike=("note:",))) == missing
