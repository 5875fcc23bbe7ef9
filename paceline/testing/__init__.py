"""Contract tests for the extension points, the fault kit and the invariant checker.

Whoever writes an engine, a backend or a filesystem of their own subclasses the contract class of
that extension point; it is the same class that the built-in ones pass.
"""
