"""Importing this module imports RLlib, without TensorFlow and JAX and without its remarks about them.

RLlib imports both wherever they are installed, although only its old API stack uses them. That takes ten seconds in
each process. Import this module before anything of `ray.rllib`.
"""

from __future__ import annotations

import logging
import os

WITHOUT_OTHER_FRAMEWORKS = {"RLLIB_TEST_NO_TF_IMPORT": "1", "RLLIB_TEST_NO_JAX_IMPORT": "1"}
"""Variables that make RLlib work without the frameworks; processes that Ray starts need them too."""

for name in (
    "ray._common.deprecation",
    "ray.rllib.algorithms.algorithm_config",
    "ray.rllib.utils.framework",
    "ray.tune.utils.util",
):  # remarks on what RLlib itself does
    logging.getLogger(name).setLevel(logging.ERROR)

_before = {name: os.environ.get(name) for name in WITHOUT_OTHER_FRAMEWORKS}
os.environ.update(WITHOUT_OTHER_FRAMEWORKS)
try:
    import ray.rllib.algorithms.algorithm  # noqa: F401
finally:
    for name, value in _before.items():  # what the user's own program imports is not our business
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
