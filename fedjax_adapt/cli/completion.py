"""`fedjax-adapt completion`: a script by which a shell completes the command line."""

import contextlib
import io
import os
import re
from collections.abc import Sequence
from importlib import import_module

from ..errors import SettingError
from ..experiment import items
from ..experiment.objects import KINDS, built_in
from ..experiment.options import options_of
from . import EXAMPLES, examples_of

SHELLS = {
    "bash": "",
    "zsh": "(( $+functions[compdef] )) || { autoload -U compinit && compinit; }\n"
    "autoload -U bashcompinit && bashcompinit\n",
}
FLAG = r"--[a-z][\w.-]*"
USAGE = """\
usage: fedjax-adapt completion {bash,zsh}

Prints a script by which the shell completes commands, flags and names.

"""
SCRIPT = """\
_fedjax_adapt() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} last=${{COMP_WORDS[COMP_CWORD-1]}} found
  # bash takes --flag=value for three words
  if [[ $word == = ]]; then word=; fi
  if [[ $last == = ]]; then last=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  case "$COMP_CWORD ${{COMP_WORDS[1]}} $last ${{word:0:1}}" in
    "1 "*) found="{commands} --help --version" ;;
    "2 completion "*) found="{shells}" ;;
    "2 reproduce "*) found="list {items}" ;;
{values}
{flags}
  esac
  COMPREPLY=($(compgen -W "$found" -- "$word"))
}}
complete -o default -F _fedjax_adapt fedjax-adapt
"""


def completion(arguments: Sequence[str]) -> int:
    """`fedjax-adapt completion SHELL`: prints the script; returns the exit code."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE + examples_of("completion"), end="")
        return 0
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        given = " ".join(arguments) or "no shell"
        raise SettingError(f"completion got {given}; write bash or zsh.")
    print(SHELLS[arguments[0]] + script(), end="")
    return 0


def script() -> str:
    """The function that bash asks what may come next, and its registration."""
    values, flags = [], []
    for command in EXAMPLES:
        known = _flags(command)
        for flag, choices in known.items():
            if choices:
                values.append(f'    *" {command} {flag} "*) found="{choices}" ;;')
        flags.append(f'    *" {command} "*" -") found="{" ".join(known)}" ;;')
    return SCRIPT.format(
        commands=" ".join(EXAMPLES),
        shells=" ".join(SHELLS),
        items=" ".join(items.names()),
        values="\n".join(values),
        flags="\n".join(flags),
    )


def _flags(command: str) -> dict[str, str]:
    """The flags of a command, each with the names that may follow it."""
    said, width = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"  # in a wider terminal two tables share a line
    try:
        with contextlib.redirect_stdout(said):
            import_module(__package__).main([command, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if width is not None:
            os.environ["COLUMNS"] = width
    found: dict[str, str] = {}
    # names that follow a flag may take two lines
    shown = re.sub(
        r"\{[^{}]*\}", lambda x: re.sub(r"[\s│|]", "", x[0]), said.getvalue()
    )
    for line in shown.splitlines():
        # in a box or without; what is said of a flag stands further to the right
        if flag := re.match(rf"[│| ] ({FLAG}(?:, {FLAG})*)", line):
            choices = re.search(r"\{([^{}]+)\}", line)
            names = choices[1].split(",") if choices else []
            # where anything but none may be written, a file is what can be completed
            names = [] if names == ["None"] else names
            words = " ".join(names).replace("None", "none")
            found |= dict.fromkeys(flag[1].split(", "), words)
    for kind in KINDS:
        if f"--{kind}" in found:
            functions = built_in(kind)
            found[f"--{kind}"] = " ".join(functions)
            options = {name for f in functions.values() for name in options_of(kind, f)}
            for name in sorted(options):
                found.setdefault(f"--{name.replace('_', '-')}", "")
    if "--base" in found and "--algorithm" in found:
        found["--base"] = found["--algorithm"]
    return found
