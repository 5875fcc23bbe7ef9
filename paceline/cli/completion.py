"""``paceline completion``: a script with which a shell completes commands, options and paths."""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")
PLACES = {"path", "paths", "output", "token_file", "certfile", "keyfile"}
"""The arguments that are files or directories."""

DESCRIPTION = """\
Prints a script for your shell. To use it from the next shell on:

  bash:  paceline completion bash > ~/.local/share/bash-completion/completions/paceline
  zsh:   paceline completion zsh > ~/.zfunc/_paceline    (with ~/.zfunc in $fpath)
  tcsh:  paceline completion tcsh > ~/.paceline.csh      (and source it in ~/.tcshrc)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or tcsh")


def run(given: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from paceline.cli.main import parser

    everything = parser()
    _complete_places(everything, shtab.FILE)
    print(shtab.complete(everything, given.shell))
    return 0


def _complete_places(parser: argparse.ArgumentParser, how: Any) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_places(command, how)
        elif action.dest in PLACES:
            action.complete = how  # type: ignore[attr-defined]  # what shtab looks for
