"""The command line: ``paceline <command>``."""
