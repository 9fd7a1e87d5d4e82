"""`retinanet completion`: the script by which a shell completes commands and settings.

shtab makes it from the parsers, so that pressing TAB starts no Python. `templates/` has the
functions for what shtab does not know: names of shipped configurations, and `section.field=value`.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import shtab
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.cli import add_command
from common.errors import FINISHED
from common.options import argument, parse_path
from retinanet.__main__ import make_parser
from retinanet.commands import Commands
from retinanet.config_file import SHIPPED, all_settings

SHELLS = ("bash", "zsh", "fish")
TEMPLATES = Path(__file__).with_name("templates")

ABOUT = """\
Print the script by which a shell completes commands, options, files, names for --config, and
settings such as training.batch_size= and their values. Write it where the shell finds it, and start
a new shell; repeat this after an update of the program:

  bash  ~/.local/share/bash-completion/completions/retinanet
        (needs the package bash-completion; without it: source the file in ~/.bashrc)
  zsh   ~/.zfunc/_retinanet, with these lines in ~/.zshrc:
        fpath=(~/.zfunc $fpath)
        autoload -U compinit && compinit
  fish  ~/.config/fish/completions/retinanet.fish"""

EXAMPLES = """\
examples:
  mkdir -p ~/.local/share/bash-completion/completions
  retinanet completion bash > ~/.local/share/bash-completion/completions/retinanet
  source <(retinanet completion bash)      # this shell only"""


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """The options of `retinanet completion`."""

    shell: str = argument(", ".join(SHELLS), metavar="SHELL", choices=SHELLS)


def add_completion(commands: Commands) -> None:
    """Add `completion`."""
    add_command(
        commands,
        "completion",
        about=ABOUT,
        examples=EXAMPLES,
        options=CompletionOptions,
        run=print_completion,
    )


def print_completion(options: CompletionOptions) -> int:
    """Print the script for a shell; return the exit code."""
    sys.stdout.write(completion_script(options.shell))
    return FINISHED


# shtab recognizes bash's functions that complete files by `_file` in their names.
FUNCTIONS = {"config": "_retinanet_config_file", "overrides": "_retinanet_settings"}
"""The functions of the templates that complete an option, by its name in the records."""

BASH_END = """
_retinanet() {
  _shtab_retinanet "$@"
  # The value of a setting follows at once, and may be a folder.
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace; fi
  if [[ " ${COMP_WORDS[*]:COMP_CWORD-1:2} " == *" = "* ]]; then compopt -o filenames; fi
}
complete -o bashdefault -F _retinanet retinanet
"""


def completion_script(shell: str) -> str:
    """Return the script that completes the console script in bash, zsh or fish."""
    parser = make_parser(None)
    for command in with_subcommands(parser):
        for action in command._actions:
            if function := FUNCTIONS.get(action.dest):
                called = {"bash": function, "zsh": function, "fish": f"({function})"}
                action.complete = called  # type: ignore[attr-defined]
            elif action.type is parse_path or action.nargs == argparse.REMAINDER:
                kind = "directory" if action.metavar == "DIR" else "file"
                action.complete = kind  # type: ignore[attr-defined]
            if command.prog.endswith(" ablate run") and action.dest == "names":
                action.choices = names_of(SHIPPED / "ablations")
    configs = [f"{name}.yaml" for name in names_of(SHIPPED)]
    script: str = shtab.complete(parser, shell, preamble=shell_functions(shell, configs))
    if shell == "zsh":
        # shtab describes any number of arguments as a single one, which excludes others.
        script = re.sub(r'"\(\*\)::?', '"*:', script)
    return f"{script}{BASH_END if shell == 'bash' else ''}"


def shell_functions(shell: str, configs: list[str]) -> str:
    """Return a shell's functions for `--config` and for settings."""
    settings = list(all_settings())
    paths = [item.name for item in settings if item.is_path]
    # The text is a shell's, which no escape of HTML makes safe; `quoted` does.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,
    )
    environment.filters |= {"quoted": quoted, "fish_quoted": fish_quoted}
    template = environment.get_template(f"completion.{shell}")
    return template.render(configs=configs, settings=settings, paths=paths)


def quoted(words: Iterable[str]) -> str:
    """Return words as one argument of bash or zsh."""
    return shlex.quote(" ".join(words))


def fish_quoted(text: str) -> str:
    """Return a text in single quotes, in which fish reads two escapes."""
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def with_subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands, described by their summaries."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for entry in action._choices_actions:
                command = action.choices[entry.dest]
                # shtab would show the whole description in zsh and fish.
                command.description = entry.help
                yield from with_subcommands(command)


def names_of(folder: Path) -> list[str]:
    """Return the names of a folder's YAML files, without their suffix."""
    return sorted(path.stem for path in folder.glob("*.yaml"))
