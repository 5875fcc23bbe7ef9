"""Old path of the progress reporters."""

from paceline.air.absent import advise
from paceline.tune.progress.reporters import CLIReporter, JupyterNotebookReporter, ProgressReporter

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"]

_OWN = "derive from ProgressReporter, and pass it as RunConfig(progress_reporter=...)"
advise(__name__, dict.fromkeys(("RemoteReporterMixin", "TrialProgressCallback", "TuneReporterBase"), _OWN))
