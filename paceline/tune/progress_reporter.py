"""Old path of the progress reporters."""

from paceline.tune.progress.reporters import CLIReporter, JupyterNotebookReporter, ProgressReporter

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"]
