"""Where a rank is, by the text of its stack."""

from __future__ import annotations

import pytest

import paceline
from paceline.run.positions import Frame, KnownFrames, users_frame

KNOWN = KnownFrames(["torch.distributed.distributed_c10d:all_reduce", "horovod:allreduce"], ["torch._tensor:backward"])
PACKAGES = "/opt/venv/lib/python3.11/site-packages"

WAITING = f"""\
Current thread 0x00007f (most recent call first):
  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 3100 in all_reduce
  File "{PACKAGES}/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 20 in step
  File "/home/me/train.py", line 40 in train

Thread 0x00007e (most recent call first):
  File "/home/me/loader.py", line 7 in fetch
"""


def test_a_rank_that_waits_in_a_collective_operation() -> None:
    position = KNOWN.position(WAITING)
    assert position.frame == Frame("/home/me/train.py", "20", "step")
    assert position.waits_in == "all_reduce"
    assert str(position) == "waits in all_reduce at /home/me/train.py:20"


def test_our_own_operations_have_the_names_that_the_user_called() -> None:
    root = paceline.__path__[0]
    text = f"""\
Current thread 0x00007f (most recent call first):
  File "{root}/run/session.py", line 195 in meet
  File "{root}/air/session.py", line 60 in meet
  File "{root}/train/collective.py", line 18 in barrier
  File "/home/me/train.py", line 20 in train
"""
    assert str(KNOWN.position(text)) == "waits in barrier at /home/me/train.py:20"
    assert KNOWN.position(text.replace("barrier", "broadcast_from_rank_zero")).waits_in == "broadcast_from_rank_zero"


def test_what_the_user_calls_all_reduce_is_no_collective_operation() -> None:
    text = WAITING.replace(f"{PACKAGES}/torch/distributed/distributed_c10d.py", "/home/me/all_reduce.py")
    assert KNOWN.position(text).waits_in == ""


def test_a_package_may_hold_the_function_itself() -> None:
    text = WAITING.replace("torch/distributed/distributed_c10d.py", "horovod/__init__.py")
    assert KNOWN.position(text.replace("all_reduce", "allreduce")).waits_in == "allreduce"


def test_an_operation_that_called_the_user_is_not_waited_in() -> None:
    """A hook that the user has given to a library runs inside of it."""
    text = f"""\
Current thread 0x00007f (most recent call first):
  File "/home/me/train.py", line 8 in hook
  File "{PACKAGES}/torch/_tensor.py", line 581 in backward
  File "/home/me/train.py", line 20 in step
"""
    position = KNOWN.position(text)
    assert (str(position.frame), position.may_wait_in) == ("/home/me/train.py:8", "")
    assert str(position) == "is at /home/me/train.py:8, in hook"


def test_what_the_users_line_has_called_is_named() -> None:
    text = """\
Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/home/me/batches.py", line 37 in _take
"""
    position = KNOWN.position(text)
    assert str(position) == "is at /home/me/batches.py:37, in _take, which called queue.get"
    package = KNOWN.position(text.replace("queue.py", "subprocess/__init__.py"))
    assert str(package).endswith("which called subprocess.get")
    assert position == package, "the rank stands still at this line"


def test_the_traceback_of_an_exception() -> None:
    text = f"""\
Traceback (most recent call last):
  File "/home/me/train.py", line 40, in train
    step()
  File "/home/me/train.py", line 20, in step
    loss.backward()
  File "{PACKAGES}/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
RuntimeError: Connection closed by peer
"""
    position = KNOWN.position(text)
    assert (str(position.frame), position.may_wait_in) == ("/home/me/train.py:20", "backward")


def test_a_thread_with_code_of_the_user_is_the_one_that_counts() -> None:
    text = f"""\
Current thread 0x00007f (most recent call first):
  File "{PACKAGES}/torch/utils/pin_memory.py", line 3 in run

Thread 0x00007e (most recent call first):
  File "/home/me/train.py", line 7 in train
"""
    assert str(KNOWN.position(text).frame) == "/home/me/train.py:7"


def test_a_rank_without_code_of_the_user() -> None:
    text = f'Current thread 0x00007f (most recent call first):\n  File "{PACKAGES}/x.py", line 3 in run'
    assert str(KNOWN.position(text).frame) == f"{PACKAGES}/x.py:3"
    assert KNOWN.position("").frame is None


@pytest.mark.parametrize("file", ["/usr/lib/python3.11/pdb.py", f"{PACKAGES}/debugpy/server/api.py"])
def test_a_debugger_is_seen_in_any_thread(file: str) -> None:
    assert not KNOWN.position(WAITING).in_debugger
    assert KNOWN.position(WAITING.replace("/home/me/loader.py", file)).in_debugger


@pytest.mark.parametrize(
    ("path", "mine"),
    [
        ("/home/me/train.py", True),
        ("/tmp/ipykernel_12/345.py", True),
        ("<stdin>", True),
        ("/usr/lib/python3.11/threading.py", False),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("<frozen runpy>", False),
        (paceline.__file__, False),
    ],
)
def test_whose_a_frame_is(path: str, mine: bool) -> None:
    assert users_frame(f'  File "{path}", line 12 in f') is mine
    assert not users_frame("Thread 0x00007f (most recent call first):")
