"""The experiment behind a Tuner: many runs in one event loop."""
