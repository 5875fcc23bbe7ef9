"""``paceline completion``: a script with which a shell completes commands, options, runs and paths."""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")
FILES = {"output", "token_file", "certfile", "keyfile"}
"""The arguments that are files or directories."""
RUNS = {"path", "paths"}
"""Those that are runs: by a path, or by a name in the results directory. But `port` changes files."""

# `place` looks a name up here first, then in the results directory. The shell does the same by itself: starting Python
# takes longer than somebody who presses Tab wants to wait. "_file" in the name makes shtab quote the answers.
_BASH = """\
_paceline_runs_or_files() {
  local root=${PACELINE_RESULTS_DIR:-$HOME/paceline_results}
  {
    compgen -f -- "$1"
    [[ $1 == [/~]* ]] || (cd -- "${root/#\\~/$HOME}" 2> /dev/null && compgen -d -- "$1")
  } | { [[ ${1##*/} == .* ]] && cat || grep -Ev '(^|/)[.][^/]*$'; } | sort -u
}
"""
_ZSH = """\
_paceline_runs_or_files() {
  local root=${PACELINE_RESULTS_DIR:-$HOME/paceline_results}
  _alternative "runs:run:_path_files -/ -W ${(q)${root/#\\~/$HOME}}" "files:path:_files"
}
"""
_FUNCTIONS = {"bash": _BASH, "zsh": _ZSH}
RUN = {"bash": "_paceline_runs_or_files", "zsh": "_paceline_runs_or_files", "tcsh": "f"}
"""tcsh has no functions: there, only paths are completed."""

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
    _complete_places(everything, shtab.FILE, RUN)
    print(shtab.complete(everything, given.shell, preamble=_FUNCTIONS.get(given.shell, "")))
    return 0


def _complete_places(parser: argparse.ArgumentParser, files: Any, runs: Any) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                _complete_places(command, files, files if name == "port" else runs)
        elif action.dest in FILES or action.dest in RUNS:
            action.complete = runs if action.dest in RUNS else files  # type: ignore[attr-defined]  # for shtab
