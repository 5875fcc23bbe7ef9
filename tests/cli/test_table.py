from __future__ import annotations

from paceline.cli.table import Column, Styled, cell, folds, pair_lines, table_lines
from paceline.run.display import cell_width

COLUMNS = [Column("name", "NAME", folds=True), Column("loss", "LOSS", right=True), Column("none", "NONE")]
ROWS = [{"name": "a" * 40, "loss": "0.5"}, {"name": "b", "loss": "12.25"}]


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    assert list(table_lines(COLUMNS, [{"name": "run", "loss": "1"}, {"name": "b"}], None)) == [
        "NAME  LOSS",
        "run      1",
        "b",
    ]


def test_a_narrow_table_folds_long_cells() -> None:
    lines = list(table_lines(COLUMNS, ROWS, 30))
    assert max(map(len, lines)) <= 30
    assert "".join(line[:23].strip().rstrip("…") for line in lines[1:3]) == "a" * 40
    assert lines[1].endswith("0.5")


def test_where_folding_is_not_enough_each_row_is_a_block() -> None:
    lines = list(table_lines(COLUMNS, ROWS, 18))
    assert max(map(len, lines)) <= 18
    assert "".join(lines).replace("NAME", "").replace(" ", "").count("a") == 40
    assert [line.split() for line in lines if "LOSS" in line] == [["LOSS", "0.5"], ["LOSS", "12.25"]]


def test_nothing_is_lost_at_any_width() -> None:
    rows = [{"name": "experiment/with_a-long,name", "loss": "123456.789"}, {"name": "日本語の名前です", "loss": "1"}]
    for width in range(1, 60):
        text = "".join("".join(table_lines(COLUMNS, rows, width)).split())
        for row in rows:
            left = iter(text)
            assert all(sign in left for value in [row["name"]] for sign in value), width
        if width >= 4:
            assert all(cell_width(line) <= max(width, 12) for line in table_lines(COLUMNS, rows, width)), width


def test_folding_prefers_the_end_of_a_word() -> None:
    assert list(folds("experiment/DataParallelTrainer_1", 20)) == ["experiment/", "DataParallelTrainer_", "1"]
    assert list(folds("x" * 7, 3)) == ["xxx", "xxx", "x"]
    assert list(folds("x" * 7, 4)) == ["xxx…", "xxxx"]
    assert list(folds("", 3)) == [""]


def test_colors_are_only_around_the_text() -> None:
    lines = list(table_lines(COLUMNS, [{"name": Styled("x", "31"), "loss": "1"}], None, colors=True))
    assert lines[1] == "\x1b[31mx\x1b[0m        1"
    assert list(table_lines(COLUMNS, [{"name": Styled("x", "31"), "loss": "1"}], None))[1] == "x        1"


def test_cells_are_one_line_without_control_characters() -> None:
    """S13."""
    assert cell("a\nb\t\x1b[31mc\x07") == "a b c"
    assert cell(1.5) == "1.5"
    assert cell(" \n") == ""


def test_pairs_fold_their_values() -> None:
    assert list(pair_lines([("name", "a b c d"), ("x", "1")], 9)) == ["name  a b", "      c d", "x     1"]


def test_words_are_cut_only_if_they_are_longer_than_the_column() -> None:
    sentence = "a checkpoint of incomprehensible proportions was lost in transit"
    for width in range(16, 40):
        pieces = list(folds(sentence, width))
        assert " ".join(pieces) == sentence
        assert all(len(piece) <= width for piece in pieces)
    assert list(folds("of incomprehensible size", 8)) == ["of", "incompr…", "ehensib…", "le size"]
    assert list(folds("see results/experiment", 12)) == ["see", "results/", "experiment"]
    assert list(folds("two words", 3)) == ["two", "wor", "ds"]


def test_a_table_that_is_drawn_again_keeps_its_columns() -> None:
    widest = {"none": 6}
    wide = list(table_lines(COLUMNS, [{"name": "a long name", "loss": "100.25"}], None, widest=widest))
    narrow = list(table_lines(COLUMNS, [{"name": "x", "loss": "1"}], None, widest=widest))
    assert wide[0] == narrow[0] == "NAME           LOSS  NONE"
    assert narrow[1] == "x                 1"
