"""Train RetinaNet-ResNeXt50 on CPUs, use the detector, and measure where the time goes."""

import argparse
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.cli import (
    PROGRAM,
    add_command,
    add_commands,
    is_console_script,
    load_function,
    run_command,
    run_parsed,
)
from common.errors import FINISHED
from common.machine import code_version, installed_versions
from common.options import argument
from common.program import DISTRIBUTION

if TYPE_CHECKING:
    from retinanet.config_file import Setting

CHAPTERS = {
    "data": {
        "data": (
            "data.__main__:COMMANDS",
            "download, split, convert, verify, benchmark or create data sets",
        ),
    },
    "training": {
        "train": ("retinanet.config_file:add_train", "train a detector, or only check a run"),
        "launch": (
            "launch.__main__:COMMANDS",
            "plan, start and measure ranks, on one host or several",
        ),
        "config": (
            "retinanet.config_file:add_config",
            "describe the settings for editors (JSON schema)",
        ),
    },
    "the trained detector": {
        "evaluate": ("retinanet.commands:add_evaluate", "mAP of a checkpoint"),
        "report": ("retinanet.commands:add_report", "a page: what it finds, misses and confuses"),
        "predict": ("retinanet.commands:add_predict", "boxes in pictures and videos"),
        "export": ("retinanet.commands:add_export", "ONNX or torch.export of a checkpoint"),
        "convert": ("retinanet.commands:add_convert", "weights of a .pth as safetensors, once"),
    },
    "measurements": {
        "profile": (
            "profiling.__main__:COMMANDS",
            "ProfileDNN: where the time of a step goes; benchmarks, ablations",
        ),
        "mlperf": (
            "retinanet.mlperf.commands:add_mlperf",
            "MLPerf's checkers, reference points and submissions; published logs compared",
        ),
    },
    "installation": {
        "compile": ("retinanet.commands:add_compile", "the C++ kernels ahead of time"),
        "completion": (
            "retinanet.__main__:add_completion",
            "commands and settings completed by bash, zsh or fish",
        ),
    },
}
"""Commands in the order of a user's work: names of functions, or of the commands of a package."""

COMMANDS = {name: entry for chapter in CHAPTERS.values() for name, entry in chapter.items()}

EXAMPLES = """\
examples:
  {prog} train                                            # synthetic data, minutes
  {prog} train --config coco.yaml data.root=/data/coco    # COCO 2017
  {prog} predict --checkpoint runs/demo photo.jpg

{prog} COMMAND --help describes a command, and has more examples."""


def main() -> int:
    """Run the command of the command line; return the exit code."""
    prog, words = PROGRAM if is_console_script() else "python -m retinanet", sys.argv[1:]
    if words[:1] == ["train"]:
        # train.py parses its options itself: errors are printed by rank 0 only.
        code: int = load_function("train:main")(prog=f"{prog} train", words=words[1:])
        return code
    return run_parsed(make_parser(prog, words))


def make_parser(prog: str, words: Sequence[str] | None) -> argparse.ArgumentParser:
    """Return the parser; without `words` all commands have their options, see `add_commands`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [-h] [--version] COMMAND …",
        description=f"{__doc__}\n\n{list_commands()}",
        epilog=EXAMPLES.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action=ShowVersion,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="show versions and the commit, and exit",
    )
    # The description has the list, by chapter. shtab leaves out what --help does.
    shown = None if words is None else argparse.SUPPRESS
    add_commands(parser, COMMANDS, words, prog=prog, help=shown)
    return parser


def list_commands() -> str:
    """Return the commands with their summaries, by chapter."""
    width = max(map(len, COMMANDS))
    lines = []
    for title, commands in CHAPTERS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:{width}}  {summary}" for name, (_, summary) in commands.items()]
    return "\n".join(lines)


def version_text() -> str:
    """Return this program's version and commit, and the versions of torch and of Python."""
    code = code_version()
    changes = ", with changes" if code["is_modified"] else ""
    commit = f" (commit {code['commit']}{changes})" if code["commit"] else ""
    program = code["version"] or "of unknown version"
    torch = installed_versions(["torch"]).get("torch", "is not installed")
    return f"{DISTRIBUTION} {program}{commit}\ntorch {torch}\nPython {platform.python_version()}"


class ShowVersion(argparse.Action):
    """Print the versions, which are looked up only now, and end the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the versions, and exit."""
        print(version_text())
        parser.exit()


SHELLS = ("bash", "zsh", "fish")

COMPLETION_ABOUT = """\
Print the script by which a shell completes commands, options, files, names for --config, and
settings such as training.batch_size= and their values. Write it where the shell finds it, and start
a new shell; repeat this after an update of the program:

  bash  ~/.local/share/bash-completion/completions/retinanet
        (needs the package bash-completion; without it: source the file in ~/.bashrc)
  zsh   ~/.zfunc/_retinanet, with these lines in ~/.zshrc:
        fpath=(~/.zfunc $fpath)
        autoload -U compinit && compinit
  fish  ~/.config/fish/completions/retinanet.fish"""

COMPLETION_EXAMPLES = """\
examples:
  mkdir -p ~/.local/share/bash-completion/completions
  python -m retinanet completion bash > ~/.local/share/bash-completion/completions/retinanet
  source <(python -m retinanet completion bash)      # this shell only"""


def add_completion(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `completion`."""
    add_command(
        commands,
        "completion",
        about=COMPLETION_ABOUT,
        examples=COMPLETION_EXAMPLES,
        options=CompletionOptions,
        run=print_completion,
    )


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """The options of `retinanet completion`."""

    shell: str = argument(", ".join(SHELLS), metavar="SHELL", choices=SHELLS)


def print_completion(options: CompletionOptions) -> int:
    """Print the script for a shell; return the exit code."""
    sys.stdout.write(completion_script(options.shell))
    return FINISHED


def completion_script(shell: str) -> str:
    """Return the script that completes the console script in bash, zsh or fish.

    shtab makes a static script from the parsers: pressing TAB starts no Python. What it does not
    know is completed by functions that are added: names of shipped configurations, and
    `section.field=value`, which bash moreover splits at `=`.
    """
    import shtab

    from retinanet.config_file import SHIPPED, all_settings

    parser = make_parser(PROGRAM, None)
    for command in with_subcommands(parser):
        for action in command._actions:
            if kind := kind_of_values(action):
                action.complete = KINDS.get(kind, kind)  # type: ignore[attr-defined]
            if command.prog.endswith(" ablate run") and action.dest == "names":
                action.choices = names_of(SHIPPED / "ablations")
    functions = SHELL_FUNCTIONS[shell](
        [f"{name}.yaml" for name in names_of(SHIPPED)], list(all_settings())
    )
    script: str = shtab.complete(parser, shell, preamble=functions)
    if shell == "zsh":
        # shtab describes any number of arguments as a single one, which excludes others.
        script = re.sub(r'"\(\*\)::?', '"*:', script)
    return f"{script}{BASH_END if shell == 'bash' else ''}"


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


def kind_of_values(action: argparse.Action) -> str | None:
    """Return what kind of values an option takes, of `KINDS` or shtab's; None: choices, or any."""
    if action.dest in KINDS:
        return action.dest
    if action.type is Path or action.nargs == argparse.REMAINDER:
        return "directory" if action.metavar == "DIR" else "file"
    return None


KINDS: dict[str, Any] = {
    "config": {
        # shtab recognizes bash's functions that complete files by `_file` in their names.
        "bash": "_retinanet_config_file",
        "zsh": "_retinanet_config_file",
        "fish": "(_retinanet_config_file)",
    },
    "overrides": {
        "bash": "_retinanet_settings",
        "zsh": "_retinanet_settings",
        "fish": "(_retinanet_settings)",
    },
}
"""What generates the values of options, by shell; shtab knows `file` and `directory`."""


def names_of(folder: Path) -> list[str]:
    """Return the names of a folder's YAML files, without their suffix."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def bash_functions(configs: list[str], settings: list["Setting"]) -> str:
    """Return the functions for `--config` and for settings, given the word at the cursor.

    bash splits `engine.name=auto` into three words, and replaces only the one behind `=`.
    """
    cases = [
        f'    {item.name}) compgen -W {quoted(item.values)} -- "$value" ;;'
        for item in settings
        if item.values
    ]
    paths = "|".join(item.name for item in settings if item.is_path)
    return f"""\
_retinanet_config_file() {{
  compgen -W {quoted(configs)} -- "$1"
  compgen -f -X '!*.yaml' -- "$1"
  compgen -d -- "$1"
}}
_retinanet_settings() {{
  local field value last=$COMP_CWORD
  if [[ ${{COMP_WORDS[last]}} == "=" ]]; then
    field=${{COMP_WORDS[last-1]}} value=
  elif [[ ${{COMP_WORDS[last-1]}} == "=" ]]; then
    field=${{COMP_WORDS[last-2]}} value=$1
  else
    compgen -S = -W {quoted([item.name for item in settings])} -- "$1"
    return
  fi
  case $field in
{NEWLINE.join(cases)}
    {paths}) compgen -f -- "$value" ;;
  esac
}}"""


BASH_END = """
_retinanet() {
  _shtab_retinanet "$@"
  # The value of a setting follows at once, and may be a folder.
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace; fi
  if [[ " ${COMP_WORDS[*]:COMP_CWORD-1:2} " == *" = "* ]]; then compopt -o filenames; fi
}
complete -o bashdefault -F _retinanet retinanet
"""


def zsh_functions(configs: list[str], settings: list["Setting"]) -> str:
    """Return the functions for `--config` and for settings."""
    cases = [
        f"      {item.name}) compadd -- {' '.join(item.values)} ;;"
        for item in settings
        if item.values
    ]
    paths = "|".join(item.name for item in settings if item.is_path)
    fields = "\n".join(f"      {shlex.quote(f'{item.name}:{item.meaning}')}" for item in settings)
    return f"""\
_retinanet_config_file() {{
  compadd -- {" ".join(configs)}
  _files -g '*.yaml'
}}
_retinanet_settings() {{
  if compset -P 1 '*='; then
    case ${{IPREFIX%=}} in
{NEWLINE.join(cases)}
      {paths}) _files ;;
    esac
  else
    local -a settings=(
{fields}
    )
    _describe setting settings -S =
  fi
}}"""


def fish_functions(configs: list[str], settings: list["Setting"]) -> str:
    """Return the functions for `--config` and for settings."""
    fields = "\n".join(
        f"    printf '%s=\\t%s\\n' {item.name} {fish_quoted(item.meaning)}" for item in settings
    )
    cases = [
        f"      case {item.name}\n        printf '%s\\n' "
        + " ".join(f"{item.name}={value}" for value in item.values)
        for item in settings
        if item.values
    ]
    paths = " ".join(item.name for item in settings if item.is_path)
    return f"""\
function _retinanet_config_file
  printf '%s\\n' {" ".join(configs)}
  __fish_complete_suffix .yaml
end
function _retinanet_settings
  set -l words (string split -m 1 = -- (commandline -ct))
  if set -q words[2]
    switch $words[1]
{NEWLINE.join(cases)}
      case {paths}
        __fish_complete_path $words[2] | string replace -r '^' "$words[1]="
    end
  else
{fields}
  end
end"""


NEWLINE = "\n"


def quoted(words: Iterable[str]) -> str:
    """Return words as one argument of a shell."""
    return shlex.quote(" ".join(words))


def fish_quoted(text: str) -> str:
    """Return a text in single quotes, in which fish reads two escapes."""
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


SHELL_FUNCTIONS = {"bash": bash_functions, "zsh": zsh_functions, "fish": fish_functions}


def run() -> int:
    """Run the console script; return the exit code."""
    return run_command(main)


if __name__ == "__main__":
    sys.exit(run())
