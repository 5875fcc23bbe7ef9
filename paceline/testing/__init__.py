"""What tests of training need: faults on purpose, a check that a resumed run equals one that was never interrupted,
contract tests for the extension points, and the invariants of a run.

Whoever writes an engine, a backend or a filesystem of their own subclasses the contract class of
that extension point; it is the same class that the built-in ones pass.
"""

from paceline.air.lazy import lazy_imports

with lazy_imports(__name__):
    from paceline.testing.chaos_kit import Chaos as Chaos
    from paceline.testing.chaos_kit import Fired as Fired
    from paceline.testing.chaos_kit import chaos as chaos
    from paceline.testing.resume import NotComparableError as NotComparableError
    from paceline.testing.resume import ResumeDifferenceError as ResumeDifferenceError
    from paceline.testing.resume import assert_resume_equivalent as assert_resume_equivalent
