"""Other libraries' own hooks that report to a run."""
