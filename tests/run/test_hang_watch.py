"""How the stacks of ranks that hang are shown."""

from __future__ import annotations

from paceline.run.hang_watch import stacks_text


def test_the_ranks_that_are_looked_for_come_first() -> None:
    text = stacks_text({0: "zero", 1: "one", 2: "two"}, first=[2])
    assert text == "-- rank 2 --\ntwo\n-- rank 0 --\nzero\n-- rank 1 --\none"


def test_a_rank_whose_stack_could_not_be_had_is_left_out() -> None:
    assert stacks_text({0: "zero"}, first=[1]) == "-- rank 0 --\nzero"
