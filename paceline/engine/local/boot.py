"""First lines of a new interpreter, warden or worker. Run as a script, before any path is right.

The one argument is a descriptor of a file: a line of JSON for this script, then bytes for
the role's own `main`.
"""

import os
import sys


def boot(config_fd: int) -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    import faulthandler
    import importlib
    import json

    with open(config_fd, "rb") as file:
        file.seek(0)
        head, _, payload = file.read().partition(b"\n")
    settings = json.loads(head)
    sys.path[:] = settings["sys_path"]
    faulthandler.register(settings["stacks_signal"])
    importlib.import_module(settings["module"]).main(payload)


if __name__ == "__main__":
    boot(int(sys.argv[1]))
