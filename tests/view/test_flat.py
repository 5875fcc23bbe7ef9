from __future__ import annotations

from paceline.view.flat import flat


def test_nested_values_become_one_level_and_masks_become_stars() -> None:
    mask = {"secret": True}
    values = {"lr": 0.1, "api_key": mask, "login": {"token": mask, "user": "me"}, "keys": [mask, 1], "empty": {}}
    assert flat(values) == {
        "lr": 0.1,
        "api_key": "***",
        "login/token": "***",
        "login/user": "me",
        "keys": ["***", 1],
        "empty": {},
    }


def test_a_users_own_value_of_that_name_is_not_a_mask() -> None:
    assert flat({"secret": True, "a": {"secret": False}, "b": {"secret": True, "c": 1}}) == {
        "secret": True,
        "a/secret": False,
        "b/secret": True,
        "b/c": 1,
    }
