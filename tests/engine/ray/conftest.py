"""Which tests of the contract `make test` runs on a Ray cluster, too."""

from __future__ import annotations

import pytest

SMOKE = {
    "test_a_killed_worker_is_noticed_though_its_child_holds_the_channel",
    "test_an_exception_arrives_with_type_message_and_traceback",
    "test_execute_returns_plain_values_in_rank_order",
    "test_output_is_in_the_log_that_was_asked_for",
    "test_shutdown_ends_what_workers_have_started",
    "test_the_group_says_where_each_rank_is",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "originalname", "") in SMOKE and item.path.parent.name == "ray":
            item.add_marker(pytest.mark.smoke)
