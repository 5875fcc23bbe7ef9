"""A module whose import does not end."""

import os
import time

from paceline.testing.processes import Marks


def wait_for_ever() -> None:
    Marks(os.environ["PACELINE_TEST_MARKS"]).say("importing")
    time.sleep(1000)


wait_for_ever()
