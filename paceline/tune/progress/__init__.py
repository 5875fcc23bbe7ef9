"""What the user sees of an experiment: a live table, plain lines, or what a reporter of theirs shows."""
