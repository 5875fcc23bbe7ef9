"""``paceline doctor --model``: what training a model needs in memory, for each number of workers."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import paceline
from paceline.air.errors import ConfigError
from paceline.air.words import counted, size_text
from paceline.cli.errors import FAILED, USAGE, CommandError
from paceline.cli.output import GREEN, RED, heading, note, short_size, write, write_csv, write_json, write_table
from paceline.cli.table import Cell, Column, Styled

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from paceline.train.torch.memory import MemoryEstimate, RankMemory

COLUMNS = (
    Column("strategy", "STRATEGY"),
    Column("world_size", "WORKERS", right=True),
    Column("parameters", "PARAMETERS", right=True),
    Column("buffers", "BUFFERS", right=True),
    Column("gradients", "GRADIENTS", right=True),
    Column("optimizer", "OPTIMIZER", right=True),
    Column("working", "WORKING", right=True),
    Column("total", "TOTAL", right=True),
    Column("memory", "MEMORY", right=True),
    Column("headroom", "HEADROOM", right=True),
    Column("fits", "FITS"),
)


_ARGUMENT = re.compile(r"^(\w+)=")


def _option(argument: re.Match[str]) -> str:
    """The option that stands for an argument of the function: the users of the command know no other name."""
    return f"--{argument[1].replace('_', '-')} "


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("memory of a model")
    group.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="a function that returns a torch.nn.Module, or a model and its optimizer; also FILE.py:FUNCTION, a class",
    )
    group.add_argument("--optimizer", metavar="NAME", help="of torch.optim, or sgd-momentum (default: adamw)")
    group.add_argument("--dtype", metavar="TYPE", help="of parameters, such as bf16 (default: as the model has them)")
    group.add_argument("--mixed-precision", metavar="TYPE", help="bf16 or fp16: compute in it, keep parameters")
    group.add_argument("--world-sizes", metavar="N,N", help="numbers of workers (default: 1,2,4,8)")
    group.add_argument(
        "--memory",
        metavar="SIZE",
        help="of each worker, such as 24GiB (default: its GPU's, or its part of this machine's)",
    )
    group.add_argument(
        "--layers", metavar="CLASS,CLASS", help="what fsdp2 gathers at a time, or none for the whole model"
    )
    group.add_argument("--gradient-as-bucket-view", action="store_true", help="ddp with this argument")


def is_without_model(given: argparse.Namespace) -> bool:
    """Whether options ask for something about a model that is not named."""
    about = ("optimizer", "dtype", "mixed_precision", "world_sizes", "memory", "layers")
    return given.model is None and (given.gradient_as_bucket_view or any(getattr(given, name) for name in about))


def show_memory(given: argparse.Namespace) -> int:
    """Print the estimate."""
    from paceline.train.torch import estimate_memory  # before the user's module: says what to install

    model, optimizer = _built(given.model)
    chosen: dict[str, str | list[str] | None] = {}
    if given.layers:
        chosen["layers"] = None if given.layers == "none" else given.layers.split(",")
    try:
        estimate = estimate_memory(
            model,
            given.optimizer or optimizer or "adamw",
            world_sizes=_sizes(given.world_sizes or "1,2,4,8"),
            memory=given.memory,
            dtype=given.dtype,
            mixed_precision=given.mixed_precision,
            gradient_as_bucket_view=given.gradient_as_bucket_view,
            **chosen,
        )
    except ConfigError as error:
        raise CommandError(_ARGUMENT.sub(_option, str(error)), USAGE) from error
    rows = [_row(rank) for rank in estimate.ranks]
    if given.format == "json":
        write_json({**dataclasses.asdict(estimate), "ranks": rows})
    elif given.format == "csv":
        write_csv(rows)
    else:
        _write_report(estimate)
    return 0


def _sizes(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ConfigError(f"--world-sizes {text}: write numbers of workers with commas, such as 1,2,4.") from None


def _row(rank: RankMemory) -> dict[str, Any]:
    return {column.key: getattr(rank, column.key) for column in COLUMNS}


def _write_report(estimate: MemoryEstimate) -> None:
    frozen = estimate.parameters - estimate.trainable
    more = f", {frozen:,} of them frozen" if frozen else ""
    heading(f"{estimate.model}: {counted(estimate.parameters, 'parameter')}{more}, {estimate.optimizer}")
    columns = [column for column in COLUMNS if any(_has(rank, column.key) for rank in estimate.ranks)]
    write_table(columns, [{column.key: _cell(rank, column.key) for column in columns} for rank in estimate.ranks])
    write("")
    write(estimate.advice)
    for each in estimate.notes:
        write(f"Note: {each}")


def _has(rank: RankMemory, key: str) -> bool:
    value = getattr(rank, key)
    return value is not None and (value != 0 or key == "fits")


def _cell(rank: RankMemory, key: str) -> Cell:
    value = getattr(rank, key)
    if key == "fits":
        return Styled("yes", GREEN) if value else Styled("no", RED)
    if key == "headroom" and value is not None and value < 0:
        return f"-{size_text(-value)}"
    return str(value) if key in ("strategy", "world_size") else short_size(value)


# -- the user's function ---------------------------------------------------------------------------


def _built(named: str) -> tuple[nn.Module, Optimizer | None]:
    """What the function returns: a model, perhaps with its optimizer. Nothing but the function is called."""
    from torch import nn
    from torch.optim import Optimizer

    place, _, name = named.rpartition(":")
    if not place or not name:
        raise CommandError(
            f"--model {named}: write it as module:function or path/to/file.py:function, for example models:build.",
            USAGE,
        )
    with contextlib.redirect_stdout(sys.stderr):  # the output is ours, and may be JSON
        target: Any = _module(named, place)
        for part in name.split("."):
            if not hasattr(target, part):
                raise CommandError(f"--model {named}: {place} has no {name}.", USAGE)
            target = getattr(target, part)
        built = target if isinstance(target, nn.Module) else _called(named, target)
    if isinstance(built, tuple | list) and len(built) == 2 and isinstance(built[1], Optimizer):
        model, optimizer = built
    else:
        model, optimizer = built, None
    if not isinstance(model, nn.Module):
        raise CommandError(
            f"--model {named} returned a {type(built).__name__}: return a torch.nn.Module, or one and its optimizer.",
            USAGE,
        )
    return model, optimizer


def _module(named: str, place: str) -> ModuleType:
    """The module, found from the current directory; or a file, which finds the modules beside it."""
    is_file = place.endswith(".py")
    path = Path(place).expanduser().absolute()
    if is_file and not path.is_file():
        raise CommandError(f"--model {named}: there is no file {place}.", USAGE)
    folder = str(path.parent) if is_file else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not is_file:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and f"{place}.".startswith(f"{error.name}."):
                raise CommandError(f"--model {named}: there is no module {error.name}.", USAGE) from error
            raise CommandError(f"--model {named}: {_described(error)}") from error
        except (Exception, SystemExit) as error:
            raise CommandError(f"--model {named}: importing {place} failed: {_described(error)}") from error
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CommandError(f"--model {named}: importing {place} failed: {_described(error)}") from error
    return module


def _called(named: str, function: Any) -> Any:
    """The function's value, on the meta device if it can be built there."""
    from paceline.train.torch.meta_device import needs_data, without_data

    if not callable(function):
        raise CommandError(f"--model {named} is a {type(function).__name__}: name a function or a class.", USAGE)
    _check_arguments(named, function)
    try:
        with without_data():
            return function()
    except (Exception, SystemExit) as error:
        is_known = needs_data(error)
        because = f"{named} needs real tensors ({_described(error)}): built for real, which takes the model's memory"
    if is_known:
        note(because)
    try:
        built = function()
    except (Exception, SystemExit) as error:
        raise CommandError(f"--model {named} raised {_described(error)}", FAILED) from error
    if not is_known:
        note(because)
    return built


def _check_arguments(named: str, function: Any) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind()
    except TypeError as error:
        raise CommandError(
            f"--model {named} needs arguments ({error}): name a function without any, which calls it with yours.", USAGE
        ) from error


def _described(error: BaseException) -> str:
    """The error in one line, with the line of the program that raised it."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_users(each.filename)]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ") + where


def _is_users(filename: str) -> bool:
    return not (
        filename.startswith("<")
        or "site-packages" in filename
        or Path(paceline.__file__).parent in Path(filename).parents
    )
