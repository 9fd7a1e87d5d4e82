"""Complete commands and settings as they are typed: in shells, and in editors of YAML files.

Editors read a JSON schema of configuration files, which pydantic makes from `retinanet/config.py`.

Shells read a static script, which shtab makes from the parsers: pressing TAB starts no Python. What
shtab does not know is completed by functions that this module adds: names of shipped
configurations, and `section.field=value`, which bash moreover splits at `=`.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shtab

from common.cli import PROGRAM, add_command, load_function
from common.errors import FINISHED
from common.files import require_free_outputs, write_atomically
from retinanet.config import SCHEMA, SECTIONS
from retinanet.config_file import SHIPPED, SHORTHANDS

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest dialect that editors' YAML support knows."""

SCHEMA_ABOUT = """\
Write the JSON schema of configuration files. With it an editor completes sections, fields and
values, shows what a field means, and underlines what a run would refuse. Rules that involve several
fields are checked by `python train.py --dry-run` only.

A file names its schema in its first line, by a path relative to the file. The first form, which the
shipped files have, is for VS Code (extension YAML) and other editors with yaml-language-server, the
second for PyCharm:

  # yaml-language-server: $schema=schema.json
  # $schema: schema.json"""

SCHEMA_EXAMPLES = """\
examples:
  python -m retinanet config schema --out schema.json
  python -m retinanet config schema | less"""


def add_config(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `config` and its command."""
    parser = add_command(commands, "config", about="Describe the settings of configuration files.")
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")
    summary = "JSON schema of configuration files: fields, values, defaults"
    schema = add_command(
        kinds, "schema", summary=summary, about=SCHEMA_ABOUT, examples=SCHEMA_EXAMPLES
    )
    schema.add_argument(
        "--out", type=Path, metavar="FILE", help="write it to this file (default: print it)"
    )
    schema.add_argument("--overwrite", action="store_true", help="replace --out if it exists")
    schema.set_defaults(run=write_schema)


def write_schema(*, out: Path | None, overwrite: bool) -> int:
    """Write or print the schema; return the exit code."""
    text = schema_text()
    if out is None:
        sys.stdout.write(text)
    else:
        require_free_outputs([out], overwrite=overwrite)
        write_atomically(out, text)
    return FINISHED


def schema_text() -> str:
    """Return the schema of configuration files as JSON."""
    return f"{json.dumps(file_schema(), indent=2, ensure_ascii=False)}\n"


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of configuration files.

    It differs from that of a complete configuration: a file may leave out sections and the name of
    the run, which is then its own, and may write `engine: ipex` for `engine: {name: ipex}`.
    """
    schema = without_titles(SCHEMA.json_schema())
    del schema["required"]
    del schema["$defs"]["RunConfig"]["required"]
    for name, section in schema["properties"].items():
        # That of `engine` would depend on the processor; the fields have theirs.
        section.pop("default", None)
        if name in SHORTHANDS:
            values = resolve(schema, section)["properties"][SHORTHANDS[name]]["enum"]
            schema["properties"][name] = {"anyOf": [section, {"enum": values}]}
    return {"$schema": DIALECT, **schema}


def without_titles(node: Any) -> Any:
    """Return a schema without pydantic's titles, such as `Timeout S` of `timeout_s`."""
    if isinstance(node, list):
        return [without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    # A field may be called title.
    is_title = {key for key, value in node.items() if key == "title" and isinstance(value, str)}
    return {key: without_titles(value) for key, value in node.items() if key not in is_title}


def resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that a node refers to, or the node itself."""
    definition: dict[str, Any] = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return definition


@dataclass(frozen=True)
class Setting:
    """A field as `section.field=value` sets it."""

    name: str
    meaning: str
    values: tuple[str, ...]
    """Values that have names; other fields take numbers, texts or paths"""
    is_path: bool


def all_settings() -> Iterator[Setting]:
    """Yield every field that is not a section itself."""
    definitions = SCHEMA.json_schema()["$defs"]
    for section, kind in SECTIONS.items():
        for name, field in definitions[kind.__name__]["properties"].items():
            forms = [field, *field.get("anyOf", ())]
            if any("$ref" in form for form in forms):
                continue  # a section, which has an entry of its own
            values = [value for form in forms for value in form.get("enum", [])]
            values += [form["const"] for form in forms if "const" in form]
            if any(form.get("type") == "boolean" for form in forms):
                values += ["true", "false"]
            is_path = any(form.get("format") == "path" for form in forms)
            yield Setting(f"{section}.{name}", field["description"], tuple(values), is_path)


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
    parser = add_command(
        commands, "completion", about=COMPLETION_ABOUT, examples=COMPLETION_EXAMPLES
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=print_completion)


def print_completion(*, shell: str) -> int:
    """Print the script for a shell; return the exit code."""
    sys.stdout.write(completion_script(shell))
    return FINISHED


def completion_script(shell: str) -> str:
    """Return the script that completes the console script in bash, zsh or fish."""
    parser: argparse.ArgumentParser = load_function("retinanet.__main__:make_parser")(PROGRAM, None)
    for command in with_subcommands(parser):
        for action in command._actions:
            if kind := kind_of_values(action):
                action.complete = KINDS[kind]  # type: ignore[attr-defined]
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
    """Return which values an option takes, as a name in `KINDS`; None where shtab knows."""
    if action.dest in ("config", "overrides"):
        return action.dest
    if action.type is Path or action.nargs == argparse.REMAINDER:
        return "folder" if action.metavar == "DIR" else "file"
    return None


KINDS = {
    "file": shtab.FILE,
    "folder": shtab.DIRECTORY,
    # bash: shtab recognizes functions that complete files by `_file` in their names.
    "config": {
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
"""shtab's form: for each shell what generates the values"""


def names_of(folder: Path) -> list[str]:
    """Return the names of a folder's YAML files, without their suffix."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def bash_functions(configs: list[str], settings: list[Setting]) -> str:
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


def zsh_functions(configs: list[str], settings: list[Setting]) -> str:
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


def fish_functions(configs: list[str], settings: list[Setting]) -> str:
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
