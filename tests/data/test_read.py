"""Arguments that all read functions take."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from paceline import data


def test_settings_of_a_cluster_are_told_to_have_no_effect(tmp_path: Path) -> None:
    data.range(5).write_csv(tmp_path)
    with pytest.warns(UserWarning, match="ray_remote_args") as told:
        ds = data.read_csv(str(tmp_path), ray_remote_args={"num_cpus": 2})
    assert told[0].filename == __file__
    assert ds.count() == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.read_csv(str(tmp_path), ray_remote_args=None)
