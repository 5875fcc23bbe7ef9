from __future__ import annotations

import fsspec.config
import pytest

from paceline.storage import patience
from paceline.storage.patience import Patience, s3_options, short


def test_only_readers_are_short_of_time() -> None:
    once = {"retries": {"total_max_attempts": 1}}
    assert patience.current() == Patience()
    assert s3_options(1) == {"config_kwargs": once}
    with short():
        assert patience.current() == patience.SHORT
        assert s3_options(1) == {"config_kwargs": {"connect_timeout": 2.0, **once}}
    assert patience.current() == Patience()


def test_settings_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"connect_timeout": 30, "s3": {"addressing_style": "path"}, "retries": {"max_attempts": 9}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": chosen})
    with short():
        assert s3_options(1)["config_kwargs"] == chosen
