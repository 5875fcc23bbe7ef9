"""Function trainables: how a function is called in its worker, and what becomes of what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Number
from typing import Any, ClassVar, Literal

from paceline.air import session
from paceline.air.constants import DEFAULT_METRIC
from paceline.air.errors import ConfigError, MetricError
from paceline.tune.trainable.session import StatusReporter, hand_in_pending_checkpoint

CallForm = Literal["config", "checkpoint_dir", "reporter"]
"""f(config); f(config, checkpoint_dir=None); f(config, reporter)."""


@dataclass(frozen=True)
class FunctionLoop:
    """Runs a function with its config in a worker."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"function": "trainable", "config": "param_space"}

    function: Callable[..., Any]
    config: Mapping[str, Any]
    form: CallForm = "config"

    def __call__(self) -> None:
        with ExitStack() as stack:
            output = self._called(stack)
            if inspect.isgenerator(output):
                stack.callback(output.close)  # its `finally` blocks run before this trial ends
                output = _report_each(output)
            _report_last(output)
            hand_in_pending_checkpoint()

    def _called(self, stack: ExitStack) -> Any:
        config = dict(self.config)
        if self.form == "reporter":
            return self.function(config, reporter=StatusReporter())
        if self.form == "checkpoint_dir":
            checkpoint = session.get_checkpoint()
            directory = None if checkpoint is None else stack.enter_context(checkpoint.as_directory())
            return self.function(config, checkpoint_dir=directory)
        return self.function(config)


def _report_each(outputs: Iterable[Any]) -> Any:
    """Report what a generator yields; gives what it returns."""
    rows = iter(outputs)
    while True:
        try:
            output = next(rows)
        except StopIteration as end:
            return end.value
        row = _as_row(output)
        if row is None:
            raise MetricError(f"The trainable yielded {_shown(output)}: yield a dict of metrics, or a number.")
        session.report(row)


def _report_last(output: Any) -> None:
    if output is None or (isinstance(output, Mapping) and not output):
        return
    row = _as_row(output)
    if row is not None:
        session.report(row)
        return
    current = session.active()
    if not current.reports:
        raise MetricError(
            f"The trainable reported nothing and returned {_shown(output)}: return a dict of metrics or a number, or "
            "call report()."
        )
    current.warn(f"The trainable returned {_shown(output)}, which is no row of metrics: it is dropped.")


def _as_row(output: Any) -> Mapping[str, Any] | None:
    if isinstance(output, Mapping):
        return output
    return {DEFAULT_METRIC: output} if isinstance(output, Number) else None


def _shown(output: Any) -> str:
    text = repr(output)
    return f"{text if len(text) <= 60 else text[:60] + '...'} ({type(output).__name__})"


def call_form(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> CallForm:
    """How to call a function that has the keywords `given` already; ConfigError if it cannot be called."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{name}() is an async function, which a trial cannot run: write it with plain `def`.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of extension modules do not tell
        return "config"
    unknown = [word for word in given if not takes_keyword(signature, word)]
    if unknown:
        raise ConfigError(f"with_parameters({unknown[0]}=...): {name}{signature} takes no argument of that name.")
    form: CallForm = "config"
    if "checkpoint_dir" in signature.parameters and "checkpoint_dir" not in given:
        form = "checkpoint_dir"
    elif "reporter" in signature.parameters and "reporter" not in given:
        form = "reporter"
    try:
        signature.bind({}, **given, **({} if form == "config" else {form: None}))
    except TypeError:
        raise ConfigError(
            f"A trainable is called with one argument, the configuration, but {name} takes {signature}. Write "
            f"`def {name}(config)`; other values come by tune.with_parameters()."
        ) from None
    return form


def takes_keyword(signature: inspect.Signature, word: str) -> bool:
    """Whether a function may be given `word=...`."""
    parameter = signature.parameters.get(word)
    if parameter is not None:
        return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
