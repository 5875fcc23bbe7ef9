"""A module whose import does not end."""

import time


def wait_for_ever() -> None:
    time.sleep(1000)


wait_for_ever()
