"""DataContext: settings can be made, and one warning says that they have no effect."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: the warning comes once per process.
SCRIPT = """
import warnings
import paceline.data
from paceline.data import DataContext, DatasetContext, ExecutionOptions, ExecutionResources, NodeIdStr
from paceline.data.context import DataContext as by_path

assert by_path is DataContext is DatasetContext and NodeIdStr is str
context = DataContext.get_current()
with warnings.catch_warnings():
    warnings.simplefilter("error")
    context.execution_options.preserve_order = True  # that is so anyway
    context.enable_progress_bars = False
    assert paceline.data.set_progress_bars(False) is False
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    context.execution_options.verbose_progress = True
    context.execution_options.resource_limits.cpu = 2
    context.execution_options = ExecutionOptions(resource_limits=ExecutionResources(cpu=1))
    context.some_setting_of_a_newer_release = 3
assert [each.filename for each in told] == ["<string>"], told
assert "verbose_progress has no effect" in str(told[0].message)
assert DataContext.get_current().execution_options.resource_limits.cpu == 1
assert context.some_setting_of_a_newer_release == 3
assert "pyarrow" not in __import__("sys").modules
"""


def test_settings_are_accepted_with_one_warning() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
