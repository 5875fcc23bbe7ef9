"""What every engine must do with tasks, and with the messages and attachments that travel to and from them."""

from __future__ import annotations

import pytest

from paceline.air.attachment import Attachment
from paceline.engine.base import (
    Message,
    TaskEnded,
    WorkerChannel,
    WorkerGroup,
)
from paceline.engine.serialization import pickled
from paceline.testing.engine_tools import (
    EngineTests,
    bodies_of,
    collect,
    collect_to_end,
    files_in_memory,
    run_task,
)


class MessagesContract(EngineTests):
    """Tasks, messages, attachments."""

    def test_a_task_gets_its_argument_and_ends(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(argument + f" of {channel.rank}/{channel.world_size}".encode())

        run_task(group, task, *[f"argument {rank}".encode() for rank in range(self.max_workers)])
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            assert bodies_of(events, rank) == [f"argument {rank} of {rank}/{self.max_workers}".encode()]
            assert TaskEnded(rank) in events

    def test_messages_keep_their_order_and_come_before_the_end(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            for number in range(5000):
                channel.send(number.to_bytes(4, "little") + b"x" * (number % 300))

        run_task(group, task)
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            own = [event for event in events if event.rank == rank]
            assert isinstance(own[-1], TaskEnded)
            assert [int.from_bytes(body[:4], "little") for body in bodies_of(own, rank)] == list(range(5000))

    def test_a_reply_reaches_the_task(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            while (answer := channel.receive()) != b"stop":
                assert answer is not None
                channel.send(answer.upper())

        run_task(group, task)
        for rank in range(self.max_workers):
            for word in (b"one", b"two", b"stop"):
                group.reply(rank, word)
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            assert bodies_of(events, rank) == [b"ONE", b"TWO"]

    def test_receive_returns_none_when_its_time_is_up(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(repr([channel.receive(timeout=0), channel.receive(timeout=0.01)]).encode())

        run_task(group, task)
        assert bodies_of(collect_to_end(group)) == [b"[None, None]"]

    def test_a_large_payload_travels_both_ways(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(argument[::-1])
            answer = channel.receive()
            assert answer is not None
            channel.send(len(answer).to_bytes(8, "little"))

        argument = b"ab" * (25 * 1024 * 1024)
        run_task(group, task, *[argument] * self.max_workers)
        events = collect(group, lambda events: len(bodies_of(events)) == 1)
        assert bodies_of(events)[0] == argument[::-1]
        for rank in range(self.max_workers):
            group.reply(rank, argument)
        assert bodies_of(collect_to_end(group))[-1] == len(argument).to_bytes(8, "little")

    @pytest.mark.parametrize("size", [0, 1, 70_000, 20_000_000])
    def test_attachments_of_any_size_travel_both_ways(self, group: WorkerGroup, size: int) -> None:
        content = (b"0123456789abcdef" * (size // 16 + 1))[:size]

        def task(channel: WorkerChannel, argument: bytes) -> None:
            message = channel.receive()
            first, second = channel.take_attachments()
            assert not channel.take_attachments(), "they are taken once"
            assert (message, bytes(second.view())) == (b"two for you", b"small")
            written = Attachment.written("paceline-test-reversed", lambda file: file.write(bytes(first.view())[::-1]))
            channel.send(b"and back", [written, Attachment(b"%d" % first.size)])

        run_task(group, task)
        for rank in range(self.max_workers):
            group.reply(rank, b"two for you", [Attachment(content), Attachment(b"small")])
        messages = [event for event in collect_to_end(group) if isinstance(event, Message)]
        assert [message.body for message in messages] == [b"and back"] * self.max_workers
        for message in messages:
            first, second = message.attachments
            assert first.size == size
            assert bytes(first.view()) == content[::-1]
            assert bytes(second.view()) == b"%d" % size

    def test_many_attachments_stay_with_their_messages_and_in_order(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            while (body := channel.receive()) != b"stop":
                assert body is not None
                found = [bytes(attachment.view()) for attachment in channel.take_attachments()]
                assert found == [b"%s, number %d" % (body, number) for number in range(int(body))]
                channel.send(body, [Attachment(content.upper()) for content in found])

        counts = [b"3", b"0", b"40", b"1", b"0"]
        run_task(group, task)
        for rank in range(self.max_workers):
            for count in counts:
                contents = [b"%s, number %d" % (count, number) for number in range(int(count))]
                group.reply(rank, count, [Attachment(content) for content in contents])
            group.reply(rank, b"stop")
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            found = [event for event in events if isinstance(event, Message) and event.rank == rank]
            assert [message.body for message in found] == counts
            for message in found:
                wanted = [b"%s, NUMBER %d" % (message.body, number) for number in range(int(message.body))]
                assert [bytes(attachment.view()) for attachment in message.attachments] == wanted

    def test_a_task_gets_the_attachments_that_it_refers_to(self, group: WorkerGroup) -> None:
        held = {"rows": Attachment(b"many rows"), "more": Attachment(b"x" * 1_000_000)}

        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(bytes(held["rows"].view()) + b" and %d" % held["more"].size)

        packed = pickled(task, "task")
        assert len(packed.content) < 100_000, "they are not part of the pickle"
        group.start(packed.content, [b""] * self.max_workers, packed.attachments)
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            assert bodies_of(events, rank) == [b"many rows and 1000000"]

    def test_attachments_are_given_back_when_nobody_needs_them(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            while (body := channel.receive()) != b"stop":
                if body == b"take":
                    (received,) = channel.take_attachments()
                    view = received.view()
                    received.close()
                    channel.send(bytes(view[:5]), [Attachment(bytes(view))])
                    del received, view
                # Those of any other message nobody takes.
            channel.send(b"%d" % files_in_memory())

        before = files_in_memory()
        run_task(group, task)
        for rank in range(self.max_workers):
            for word in (b"take", b"leave", b"take", b"stop"):
                group.reply(rank, word, [Attachment(b"hello" * 20_000)] if word != b"stop" else ())
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            *echoes, count = bodies_of(events, rank)
            assert echoes == [b"hello", b"hello"]
            assert int(count) == 0 or not self.isolated
        del events
        assert group.poll(0) == []
        assert files_in_memory() == before
