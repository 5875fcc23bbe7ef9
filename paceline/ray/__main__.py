"""``python -m paceline.ray [options] script.py [arguments]``: python itself, with the alias in place.

The interpreter is replaced by a fresh one that finds the alias on PYTHONPATH. So everything that is not `import ray` is
as with plain python: `__main__`, sys.argv, sys.path, tracebacks, exit codes, options such as -m, and debuggers.
"""

from __future__ import annotations

import os
import sys

from paceline.compat.ray_alias import PATH_VARIABLE, SHIM, other_paths

USAGE = """\
usage: python -m paceline.ray [python options] script.py [arguments]
       python -m paceline.ray [python options] -m module [arguments]

Runs a program written for Ray Train, Tune or AIR: its `import ray` gives paceline.
"""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return
    if sys.flags.ignore_environment:
        sys.exit(
            "paceline.ray: python -E and -I ignore PYTHONPATH, by which the alias is found; leave the option out, or "
            "call paceline.ray.install() at the top of the script."
        )
    if (sys.gettrace() or sys.getprofile()) and "pydevd" not in sys.modules:  # which follows into the new interpreter
        print(
            "paceline.ray: the program runs in a new interpreter, without this debugger or profiler; write "
            "python -m paceline.ray -m pdb script.py.",
            file=sys.stderr,
        )
    os.environ[PATH_VARIABLE] = os.pathsep.join(_import_path())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *_options(len(arguments)), *arguments])


def _import_path() -> list[str]:
    given = other_paths()
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # `python -m` finds a paceline of the current directory, `python script.py` would not.
    return [SHIM, *given] if sys.path[0] != home or home in given else [SHIM, *given, home]


def _options(arguments: int) -> list[str]:
    """The interpreter's own options: what stands before ``-m paceline.ray``, also written -mpaceline.ray or -um ..."""
    before = sys.orig_argv[1 : len(sys.orig_argv) - arguments]
    *options, last = before
    joined = last.removesuffix("paceline.ray")
    if not joined:
        *options, joined = options
    rest = joined.removesuffix("m")
    return options if rest == "-" else [*options, rest]


if __name__ == "__main__":
    main()
