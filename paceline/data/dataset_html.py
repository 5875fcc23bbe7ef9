"""How a Dataset looks in a notebook. Nothing is read and no function of the user's runs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.air import html
from paceline.air.words import counted

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_COLUMNS = 30
_STEPS = 20
_STEP = 100


def dataset_html(dataset: Dataset) -> str:
    plan = dataset.plan
    facts: list[object] = []
    if plan.is_counted:
        facts.append(counted(sum(block.rows or 0 for block in plan.blocks()), "row"))
    schema = plan.known_schema
    facts.append("columns not known until rows are read" if schema is None else counted(len(schema), "column"))
    steps = [plan.source.describe(), *(operation.label for operation in plan.operations)]
    if len(steps) > _STEPS:
        steps[_STEPS:] = [f"… and {counted(len(steps) - _STEPS, 'more step', 'more steps')}"]
    parts: list[object] = [
        html.heading(type(dataset).__name__, *facts),
        html.element("div", html.joined([html.element("code", html.short(step, _STEP)) for step in steps], " → ")),
    ]
    if schema is not None:
        rows = [(field.name, html.short(str(field.type))) for field in list(schema)[:_COLUMNS]]
        if len(schema) > _COLUMNS:
            rows.append(("…", html.muted(f"and {counted(len(schema) - _COLUMNS, 'more column', 'more columns')}")))
        parts.append(html.table(["column", "type"], rows))
    return html.whole(*parts)
