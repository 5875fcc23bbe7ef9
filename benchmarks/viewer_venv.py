"""TensorBoard and the MLflow UI in a virtual environment of their own: MLflow needs an older pyarrow than we test with.

`python -m benchmarks.viewer_venv` makes it in the user's cache; the measures make it when they need it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from functools import cache
from pathlib import Path

from benchmarks.harness import MeasureError

PACKAGES = ("mlflow==3.17.2", "tensorboard==2.21.0", "setuptools<81")
"""TensorBoard still imports pkg_resources, which newer setuptools lack."""
INSTALL_S = 1800


@cache
def viewer_bin() -> Path:
    """Where the programs of the peers are; they are installed the first time."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = "-".join(package.replace("==", "") for package in PACKAGES[:2])
    place = Path(cache_home, "paceline-bench", f"{name}-py{sys.version_info.major}.{sys.version_info.minor}")
    if not (place / "ready").exists():
        _install(place)
    return place / "bin"


def _install(place: Path) -> None:
    print(f"  installing {' and '.join(PACKAGES[:2])} into {place}", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    venv.create(place, with_pip=True)  # where it stays: its scripts name their interpreter
    with tempfile.TemporaryFile() as log:
        command = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
        ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=INSTALL_S)
        log.seek(0)
        if ended.returncode != 0:
            text = log.read().decode(errors="replace")[-1000:]
            raise MeasureError(f"{' '.join(PACKAGES)} could not be installed:\n{text}")
    (place / "ready").touch()


if __name__ == "__main__":
    try:
        print(viewer_bin())
    except MeasureError as error:
        sys.exit(str(error))
