"""How agents find out that the machine of a silent driver is there."""

from __future__ import annotations

import socket

import pytest

from paceline.engine.remote.door import Door


def test_knocks_never_fill_the_queue_of_a_driver_that_is_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as driver:
        door = Door(driver.getsockname())
        for _ in range(10):
            door.knock(2.0)
        accepted, _ = driver.accept()  # It is awake again.
        accepted.close()
        for _ in range(2):
            door.knock(2.0)
        address = driver.getsockname()
    with pytest.raises(OSError, match="refused"):
        door.knock(2.0)
    with pytest.raises(OSError, match="refused"):
        Door(address).knock(2.0)
