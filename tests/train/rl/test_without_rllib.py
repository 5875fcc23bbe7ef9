"""What `make test` sees of paceline.train.rl, where RLlib is not installed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["ray", "gymnasium"])  # the extra `ray` brings Ray without RLlib
def test_missing_rllib_names_the_command_to_install_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("paceline.train.rl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"paceline\[rllib\]") as caught:
        importlib.import_module("paceline.train.rl")
    assert caught.value.name == "ray"


def test_the_rest_of_paceline_does_not_need_it() -> None:
    """Also what knows the name of its predictor: the table of predictors, and serving."""
    script = (
        "import sys; sys.modules['ray'] = None; import paceline.train, paceline.tune; "
        "import paceline.train.predictor; "
        "assert not any(name.startswith(('ray', 'gymnasium')) for name in sys.modules if sys.modules[name])"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
