"""Trackers: rows and outcomes of runs, sent to MLflow, Weights & Biases, Comet and Aim."""
