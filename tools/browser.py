"""Chromium for the tests of the run page, without root.

    python tools/browser.py            # find it, or download it; prints where it is
    python tools/browser.py --find     # only look

Looked for in this order: PACELINE_CHROMIUM, the PATH, Debian's package unpacked in the user's cache, npm's
@sparticuz/chromium in the same place. What was downloaded before stays in use: Ubuntu, for example, has a program
chromium-browser that only asks for a snap.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DOWNLOAD_S = 600
FLAGS = (
    "--no-sandbox",  # root, and containers without user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Browser:
    executable: str
    environment: dict[str, str] = field(default_factory=dict)
    """What it needs besides the environment that there is: where its libraries and fonts are."""


def cache() -> Path:
    """Of the user, whatever HOME says: tests have a home of their own."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache")
    return Path(base, "paceline-browser")


def find() -> Browser | None:
    """A browser that is there already."""
    if given := os.environ.get("PACELINE_CHROMIUM"):
        return Browser(given)
    with contextlib.suppress(OSError, ValueError, TypeError):  # it is there only if the one on the PATH did not work
        downloaded = Browser(**json.loads((cache() / "browser.json").read_text()))
        if os.access(downloaded.executable, os.X_OK):
            return downloaded
    return next((Browser(path) for name in NAMES if (path := shutil.which(name))), None)


def install() -> Browser:
    """A browser that is there, or else a downloaded one. Raises OSError with what was tried."""
    found = find()
    if found is not None and works(found):
        return found
    problems = []
    for attempt in (from_debian, from_npm):
        folder = Path(tempfile.mkdtemp(prefix="unfinished-", dir=made(cache())))
        try:
            browser = attempt(folder)
            if not works(browser):
                raise OSError(f"{browser.executable} does not start")
            return kept(browser, folder, cache() / attempt.__name__)
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(f"{attempt.__name__}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise OSError("no Chromium: " + "; ".join(problems))


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def kept(browser: Browser, folder: Path, place: Path) -> Browser:
    """Move a complete download to its place, and write down what starts it."""
    shutil.rmtree(place, ignore_errors=True)
    folder.rename(place)
    text = json.dumps(asdict(browser)).replace(str(folder), str(place))
    for file in place.rglob("fonts.conf"):
        file.write_text(file.read_text().replace(str(folder), str(place)))
    (cache() / "browser.json").write_text(text)
    return Browser(**json.loads(text))


def works(browser: Browser) -> bool:
    """Whether Playwright can show a text with it: without fonts, for example, a page stays empty."""
    from playwright.sync_api import Error, sync_playwright

    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(
                executable_path=browser.executable, args=FLAGS, env={**os.environ, **browser.environment}
            )
            page = chromium.new_page()
            page.goto("data:text/html,<p>it works</p>")
            shown = page.inner_text("p")
            chromium.close()
    except Error:
        return False
    return shown == "it works"


def from_debian(folder: Path) -> Browser:
    """The packages that are missing on this machine, unpacked beside each other."""
    options: list[str] = []
    wanted = ["chromium-headless-shell", "fonts-dejavu-core"]
    listed = simulated(wanted, options)
    if listed is None:  # the lists of packages are empty, as in a new container: fetch them for ourselves
        state = made(folder / "apt")
        made(state / "lists" / "partial")
        options = ["-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state}"]
        run(["apt-get", "-qq", *options, "update"], folder)
        listed = simulated(wanted, options)
    if listed is None:
        raise OSError("apt-get does not know chromium-headless-shell")
    run(["apt-get", "-qq", *options, "download", *sorted({*listed, *wanted})], folder)
    root = made(folder / "root")
    for package in folder.glob("*.deb"):
        run(["dpkg", "-x", str(package), str(root)], folder)
        package.unlink()
    shutil.rmtree(folder / "apt", ignore_errors=True)
    libraries = sorted({os.path.dirname(path) for path in glob.glob(f"{root}/**/*.so*", recursive=True)})
    shells = [*root.glob("usr/lib/chromium/*headless*shell"), *root.glob("usr/bin/chromium-headless-shell")]
    if not shells:
        raise OSError("the package has no chromium-headless-shell")
    environment = {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "FONTCONFIG_FILE": str(fonts(folder, root / "usr/share/fonts")),
    }
    return Browser(str(shells[0]), environment)


def simulated(packages: list[str], options: list[str]) -> list[str] | None:
    """What an installation would add; None if there is no such package."""
    command = ["apt-get", "-s", *options, "install", "--no-install-recommends", *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S)
    if done.returncode != 0:
        return None
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]


def fonts(folder: Path, place: Path) -> Path:
    """Settings with which the fonts are found that were downloaded, and those of the machine."""
    config = folder / "fonts.conf"
    config.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f"<dir>{place}</dir><dir>/usr/share/fonts</dir>"
        f"<cachedir>{made(folder / 'font-cache')}</cachedir></fontconfig>"
    )
    return config


def from_npm(folder: Path) -> Browser:
    """The build that @sparticuz/chromium ships compressed inside its package."""
    run(["npm", "install", "--silent", "--no-audit", "--no-fund", "@sparticuz/chromium"], folder)
    script = "import('@sparticuz/chromium').then(async m => console.log(await m.default.executablePath()))"
    environment = {**os.environ, "TMPDIR": str(folder), "AWS_LAMBDA_FUNCTION_NAME": "x", "AWS_EXECUTION_ENV": "x"}
    command = ["node", "--input-type=module", "-e", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DOWNLOAD_S)
    path = done.stdout.strip()
    if done.returncode != 0 or not os.path.exists(path):
        raise OSError(done.stderr.strip()[-300:] or "nothing was unpacked")
    libraries = {os.path.dirname(each) for each in glob.glob(f"{folder}/**/*.so*", recursive=True)}
    environment = {
        "LD_LIBRARY_PATH": ":".join(sorted(libraries)),
        "FONTCONFIG_FILE": str(fonts(folder, folder / "fonts")),
    }
    return Browser(path, environment)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_S)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-300:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--find", action="store_true", help="download nothing")
    given = parser.parse_args()
    try:
        browser = find() if given.find else install()
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    if browser is None:
        print("there is no Chromium; `python tools/browser.py` downloads one", file=sys.stderr)
        return 1
    print(browser.executable)
    return 0


if __name__ == "__main__":
    sys.exit(main())
