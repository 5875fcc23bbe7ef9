"""Texts as a terminal may be given them, and a stream that never kills its writer."""

from __future__ import annotations

import io
import os

import pytest

from paceline.run.display import GuardedWriter, HeldDisplay, LinePrefixer, PlainDisplay, last_overwrite, printable


class TestRanksOutput:
    def test_each_line_gets_one_prefix(self) -> None:
        assert LinePrefixer().prefixed("(rank 3) ", "a\n\nb\n") == "(rank 3) a\n(rank 3) \n(rank 3) b\n"

    def test_a_line_in_pieces_gets_one_prefix(self) -> None:
        prefixer = LinePrefixer()
        pieces = [
            prefixer.prefixed("(rank 0) ", "abc"),
            prefixer.prefixed("(rank 0) ", "def"),
            prefixer.prefixed("(rank 0) ", "g\nh\n"),
        ]
        assert "".join(pieces) == "(rank 0) abcdefg\n(rank 0) h\n"

    def test_another_rank_starts_its_own_line(self) -> None:
        prefixer = LinePrefixer()
        text = (
            prefixer.prefixed("(rank 0) ", "abc")
            + prefixer.prefixed("(rank 1) ", "x\n")
            + prefixer.prefixed("(rank 0) ", "def\n")
        )
        assert text == "(rank 0) abc\n(rank 1) x\n(rank 0) def\n"

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("10%\r20%\r30%\n", "30%\n"),
            ("windows\r\nline\r\n", "windows\nline\n"),
            ("a\nb\rc\r\n", "a\nc\n"),
            ("plain\n", "plain\n"),
        ],
    )
    def test_progress_bars_show_their_last_state(self, text: str, shown: str) -> None:
        assert last_overwrite(text) == shown

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b[2J\x1b[1;1Hhome", "home"),
            ("\x1b]0;title\x07text", "text"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1bPdevice\x1b\\text", "text"),
            ("\x1bcreset", "reset"),
            ("bell\x07 nul\x00 del\x7f csi\x9b", "bell nul del csi"),
            ("tab\tand\nline", "tab\tand\nline"),
            ("torn\x1b", "torn"),
            ("torn\x1b]0;title", "torn"),
            ("ü 漢", "ü 漢"),
        ],
    )
    def test_printable(self, text: str, shown: str) -> None:
        assert printable(text) == shown


class TestGuardedWriter:
    def test_goes_quiet_when_the_reader_is_gone(self) -> None:
        reader, writing_end = os.pipe()
        os.close(reader)
        stream = os.fdopen(writing_end, "w")
        writer = GuardedWriter(stream)
        writer.write("lost\n")
        assert writer.quiet
        writer.write("not tried\n")
        with pytest.raises(BrokenPipeError):  # the text object still holds what it could not write
            stream.close()

    def test_a_reader_that_is_slow_is_not_given_up(self) -> None:
        class Busy(io.StringIO):
            busy = True

            def write(self, text: str) -> int:
                if self.busy:
                    raise BlockingIOError
                return super().write(text)

        stream = Busy()
        writer = GuardedWriter(stream)
        writer.write("dropped\n")
        stream.busy = False
        writer.write("shown\n")
        assert stream.getvalue() == "shown\n"

    def test_characters_that_the_stream_cannot_say_are_replaced(self) -> None:
        raw = io.BytesIO()
        writer = GuardedWriter(io.TextIOWrapper(raw, encoding="ascii"))
        writer.write("über \ud800 …\n")
        assert raw.getvalue() == b"?ber ? ?\n"
        assert not writer.quiet

    def test_no_stream_at_all(self) -> None:
        writer = GuardedWriter(None)
        assert writer.write("x") == 1
        assert not writer.isatty()


class TestHeldDisplay:
    def test_lines_appear_when_the_terminal_is_free_again(self) -> None:
        stream = io.StringIO()
        display = PlainDisplay(GuardedWriter(stream), detailed=True)
        display.output("(rank 0) ", "a line without an end")
        held = HeldDisplay(display)
        before = stream.getvalue()
        assert before.endswith("end\n"), "whoever uses the terminal starts on a line of its own"
        held.say("said")
        held.detail("a detail")
        held.output("(rank 1) ", "printed\n")
        held.refresh()
        assert stream.getvalue() == before
        assert held.released() is display
        assert stream.getvalue().removeprefix(before) == "said\na detail\n(rank 1) printed\n"
