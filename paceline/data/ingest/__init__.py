"""Datasets on their way to workers: who reads which rows of which epoch, and where each one is."""
