"""The run page: a server that shows runs and searches in a browser."""
