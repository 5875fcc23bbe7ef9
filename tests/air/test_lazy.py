"""Names of a package are written as imports and loaded on first use."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

PACKAGE = """
from paceline.air.lazy import lazy_imports

OWN = 1
with lazy_imports(__name__, modules=("hidden",), advice={"Old": "use Thing"}):
    from lazy_sample import whole as whole
    from lazy_sample.part import Thing as Thing
    from lazy_sample.part import Thing as Another
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch):
    folder = tmp_path / "lazy_sample"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "part.py").write_text("class Thing: ...\n")
    (folder / "whole.py").write_text("value = 3\n")
    (folder / "hidden.py").write_text("value = 4\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("lazy_sample")
    for name in [name for name in sys.modules if name.startswith("lazy_sample")]:
        del sys.modules[name]


def test_nothing_is_loaded_before_it_is_asked_for(sample):
    assert not [name for name in sys.modules if name.startswith("lazy_sample.")]
    assert sample.Thing.__module__ == "lazy_sample.part"
    assert "lazy_sample.whole" not in sys.modules


def test_names_modules_and_aliases(sample):
    assert sample.Another is sample.Thing
    assert sample.whole.value == 3
    assert sample.hidden.value == 4
    assert vars(sample)["Thing"] is sample.Thing  # found without __getattr__ from now on


def test_from_imports_and_stars(sample):
    from lazy_sample import Another, whole

    assert whole.value == 3
    space: dict[str, object] = {}
    exec("from lazy_sample import *", space)
    assert space["Another"] is Another
    assert "hidden" not in space


def test_what_the_package_offers(sample):
    assert sample.__all__ == ["Another", "Thing", "whole"]
    assert {"Another", "Thing", "hidden", "whole", "OWN"} <= set(dir(sample))


def test_a_missing_name_says_what_to_write(sample):
    with pytest.raises(AttributeError, match="use Thing"):
        _ = sample.Old
    assert not hasattr(sample, "nothing_like_it")


def test_imports_of_other_threads_are_real(tmp_path, monkeypatch):
    """While one thread notes imports, another one imports."""
    (tmp_path / "lazy_other.py").write_text("value = 5\n")
    folder = tmp_path / "lazy_busy"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import lazy_hooks\n"
        "from paceline.air.lazy import lazy_imports\n"
        "with lazy_imports(__name__):\n"
        "    lazy_hooks.inside()\n"
        "    from lazy_busy.missing import Nothing as Nothing\n"
    )
    hooks = type(sys)("lazy_hooks")
    seen = []

    def inside() -> None:
        thread = threading.Thread(target=lambda: seen.append(__import__("lazy_other").value))
        thread.start()
        thread.join()

    hooks.inside = inside
    monkeypatch.setitem(sys.modules, "lazy_hooks", hooks)
    monkeypatch.syspath_prepend(tmp_path)
    import lazy_busy

    assert seen == [5]
    assert lazy_busy.__all__ == ["Nothing"]
    for name in ("lazy_busy", "lazy_other"):
        del sys.modules[name]
