"""Attachment: content without a name."""

from __future__ import annotations

import io
import pickle

import pytest

from paceline.air.attachment import Attachment
from tests.descriptors import open_descriptors


def in_memory(content: bytes) -> Attachment:
    return Attachment(content)


def in_file(content: bytes) -> Attachment:
    return Attachment.written("paceline-test", lambda file: file.write(content))


KINDS = pytest.mark.parametrize("make", [in_memory, in_file])


@KINDS
@pytest.mark.parametrize("content", [b"", b"x", b"some" * 3_000_000])
def test_the_content_is_what_was_put_in(make: type[Attachment], content: bytes) -> None:
    attachment = make(content)
    assert attachment.size == len(content)
    assert bytes(attachment.view()) == content
    with attachment.open() as first, attachment.open() as second:
        assert first.read(2) == content[:2]
        assert second.read() == content
    target = io.BytesIO()
    attachment.write_to(target)
    assert target.getvalue() == content
    assert bytes(pickle.loads(pickle.dumps(attachment)).view()) == content
    attachment.fileno()  # puts bytes into a file
    assert bytes(attachment.view()) == content
    assert attachment.size == len(content)


@KINDS
def test_a_private_view_can_be_changed_and_nobody_sees_it(make: type[Attachment]) -> None:
    attachment = make(b"original")
    mine = attachment.view(private=True)
    mine[:3] = b"ORI"
    assert bytes(mine) == b"ORIginal"
    assert bytes(attachment.view()) == b"original"
    with pytest.raises(TypeError):
        attachment.view()[0] = 0


@KINDS
@pytest.mark.parametrize("closed", [True, False])
def test_views_outlive_the_attachment_and_nothing_is_left(make: type[Attachment], closed: bool) -> None:
    before = open_descriptors()
    attachment = make(b"content")
    attachment.fileno()
    view = attachment.view()
    if closed:
        attachment.close()
        attachment.close()
        with pytest.raises(ValueError, match="closed"):
            attachment.view()
    del attachment
    assert bytes(view) == b"content"
    del view
    assert not open_descriptors() - before


def test_what_could_not_be_written_leaves_nothing() -> None:
    def fail(file: io.BytesIO) -> None:
        file.write(b"a part")
        raise OSError("full")

    before = open_descriptors()
    with pytest.raises(OSError, match="full"):
        Attachment.written("paceline-test", fail)
    assert not open_descriptors() - before
