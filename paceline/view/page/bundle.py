"""The built front end, as it lies in the package. Nothing else is ever sent from a file name that a client gave."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
PLACE_OF_TOKEN = b"{{paceline-token}}"
_WITHOUT_BUNDLE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>paceline</title>
<meta name="paceline-token" content="{{paceline-token}}">
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 36em; margin: 4em auto; padding: 0 1em">
<h1>paceline</h1><p>The page is not part of this installation: <code>make page</code> builds it.
<p>The server answers programs: <a href="/api/list">/api/list</a>."""


@dataclass(frozen=True)
class Asset:
    """One file of the bundle."""

    kind: str
    packed: bytes


@dataclass(frozen=True)
class Bundle:
    """All files that a browser may load."""

    index: bytes
    """With a place for the page's token."""
    assets: dict[str, Asset]


@cache
def bundle() -> Bundle:
    """What `make page` built."""
    folder = files("paceline.view.page") / "bundle"
    index, assets = folder / "index.html", folder / "assets"
    if not index.is_file():
        return Bundle(_WITHOUT_BUNDLE, {})
    found = {each.name: each for each in assets.iterdir() if each.is_file()} if assets.is_dir() else {}
    return Bundle(
        index.read_bytes(),
        {
            name: Asset(kind, gzip.compress(each.read_bytes(), 9))
            for name, each in found.items()
            if (kind := _KINDS.get(name[name.rfind(".") :])) is not None
        },
    )
