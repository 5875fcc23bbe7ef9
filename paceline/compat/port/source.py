"""Ports the text of one program. Only names change; comments, strings and layout stay."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from paceline.compat.port.bindings import Binding, NameGroup, Program, statement_around
from paceline.compat.port.verdicts import Judge, Verdict


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces bytes from `start` to `end` (the same: inserts)."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mark:
    """A line that needs a person: advice, and where the statement is."""

    position: int
    advice: str


def apply(source: bytes, edits: Sequence[Edit]) -> bytes:
    """The text with all edits; those at one place in the order given."""
    parts, done = [], 0
    for edit in sorted(edits, key=lambda each: each.start):
        parts += [source[done : edit.start], edit.text.encode()]
        done = edit.end
    return b"".join([*parts, source[done:]])


def line_start(source: bytes, position: int) -> int:
    return max(source.rfind(b"\n", 0, position), source.rfind(b"\r", 0, position)) + 1


def indent_at(source: bytes, position: int) -> str:
    line = source[line_start(source, position) :]
    return line[: len(line) - len(line.lstrip(b" \t\f"))].decode()


def newline_of(source: bytes) -> str:
    """How lines end in this file, by its first one."""
    first = source.partition(b"\n")[0]
    return "\r\n" if first.endswith(b"\r") else "\n"


def line_number(source: bytes, position: int, edits: Sequence[Edit] = ()) -> int:
    """The line of a position, counted from 1; with edits, the line where it will be."""
    added = sum(
        edit.text.count("\n") - source.count(b"\n", edit.start, edit.end) for edit in edits if edit.end <= position
    )
    return source.count(b"\n", 0, position) + 1 + added


MARK = "# paceline port: "
_NAME_IN_TYPE = re.compile(r"(?<![\w.])ray(?:\.\w+)+")
_TYPE_COMMENT = re.compile(r"#\s*type:(?!\s*ignore)")
_PAGE_BREAK = re.compile(rb"^\f(?=\r?$)", re.MULTILINE)
_OTHER_REGISTRY = (
    "RLlib looks environments up in Ray's registry: write `from ray.tune import register_env` and call that"
)


class NotPythonError(Exception):
    """The text cannot be parsed; it says where."""

    def __init__(self, reason: str, line: int | None = None, place: str = "") -> None:
        super().__init__(reason if line is None else f"{place}line {line}: {reason}")
        self.reason = reason
        self.line = line


@dataclass(frozen=True)
class Ported:
    """What is to be changed, and what a person must look at."""

    edits: list[Edit]
    marks: list[Mark]


def port(source: bytes) -> Ported:
    """What to change in a program, given in UTF-8."""
    parsable = _PAGE_BREAK.sub(b" ", source)  # LibCST would drop them
    try:
        module = cst.parse_module(parsable.decode())
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise NotPythonError("this is not Python that can be parsed", _bad_line(parsable)) from error
    if module.code.encode() != parsable:
        raise NotPythonError("parsing does not give the same text back")
    wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
    program = Program()
    wrapper.visit(program)
    return _Porting(source, wrapper, program).ported()


def _bad_line(source: bytes) -> int | None:
    """By Python's own parser: LibCST often names the line below."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error.lineno
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


class _Porting:
    def __init__(self, source: bytes, wrapper: metadata.MetadataWrapper, program: Program) -> None:
        self._source = source
        self._wrapper = wrapper
        self._program = program
        self._spans = wrapper.resolve(metadata.ByteSpanPositionProvider)
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        names = [each.imported for group in program.groups.values() for each in group.bindings]
        names += [use.name for group in program.groups.values() for use in group.uses]
        self._judge = Judge(
            uses_rllib=any(f"{name}.".startswith("ray.rllib.") for name in names),
            uses_rl_trainer=any(f"{name}.".startswith("ray.train.rl.") for name in names),
        )
        self._edits: list[Edit] = []
        self._marks: dict[tuple[int, str], Mark] = {}
        self._extra: dict[cst.CSTNode, set[str]] = {}

    def ported(self) -> Ported:
        for group in self._program.groups.values():
            if group.bindings[0].is_package:
                self._port_package(group)
            else:
                self._look_at_uses(group)
        for statement in self._program.statements:
            if isinstance(statement, cst.ImportFrom):
                self._port_from(statement)
            self._add_imports(statement)
        for star in self._program.stars:
            self._port_module_of(star)
        for comment in self._program.comments:
            self._port_type_comment(comment)
        marks = sorted(self._marks.values(), key=_position)
        return Ported(self._mark_edits(marks) + self._edits, marks)

    # import ray, import ray.tune, import ray as r

    def _port_package(self, group: NameGroup) -> None:
        """The name stays where something needs Ray itself; then paceline is imported beside it."""
        verdicts = [self._judge.verdict(use.name) for use in group.uses]
        ray_stays = any(verdict.stays for verdict in verdicts)
        renamed = ray_stays or any(each.alias.asname is None for each in group.bindings)
        for use, verdict in zip(group.uses, verdicts, strict=True):
            if verdict.target is None:
                self._mark(use.node, verdict)
                continue
            first = "paceline" if renamed else use.node.value
            if verdict.target.startswith("paceline.ray."):
                first += ".ray"
            self._replace(use.node, first)
        ported = [self._port_import(binding, ray_stays) for binding in group.bindings]
        first_statement = group.bindings[0].statement
        if not any(ported) and any(not verdict.stays for verdict in verdicts):
            self._extra.setdefault(first_statement, set()).add("paceline")
        if ray_stays and all(ported):
            local = group.bindings[0].local
            self._extra.setdefault(first_statement, set()).add("ray" if local == "ray" else f"ray as {local}")

    def _port_import(self, binding: Binding, ray_stays: bool) -> bool:
        """Whether the statement imports paceline now."""
        verdict = self._judge.verdict(binding.imported)
        if verdict.target is None:
            self._mark(binding.alias, verdict)
            return False
        if ray_stays and binding.imported == "ray":
            return False
        target = "paceline.ray" if verdict.target.startswith("paceline.ray.cloudpickle") else verdict.target
        self._replace(binding.alias.name, target)
        return True

    # from ray import tune, import ray.tune as tune

    def _look_at_uses(self, group: NameGroup) -> None:
        for binding in group.bindings:
            if isinstance(binding.statement, cst.Import):
                verdict = self._judge.verdict(binding.imported)
                if verdict.target is None:
                    self._mark(binding.alias, verdict)
                else:
                    self._replace(binding.alias.name, _home(verdict.target))
        if self._judge.verdict(group.bindings[0].imported).stays:
            return  # said at the import
        for use in group.uses:
            verdict = self._judge.verdict(use.name)
            if verdict.stays:
                self._mark(use.node, verdict if verdict.advice else Verdict(advice=f"{use.name}: {_OTHER_REGISTRY}."))

    def _port_from(self, statement: cst.ImportFrom) -> None:
        module = get_full_name_for_node(statement.module) if statement.module else None
        assert module is not None
        assert not isinstance(statement.names, cst.ImportStar)
        homes: dict[str, list[cst.ImportAlias]] = {}
        for alias in statement.names:
            name = f"{module}.{alias.evaluated_name}"
            verdict = self._judge.verdict(name)
            if verdict.target is None:
                self._mark(alias, verdict)
            home = module if verdict.target is None else _home(verdict.target.rpartition(".")[0])
            homes.setdefault(home, []).append(alias)
        if len(homes) > 1:
            stays_first = sorted(homes.items(), key=lambda each: each[0] != module)  # below the comment about it
            parts = [self._from_statement(statement, home, aliases) for home, aliases in stays_first]
            self._replace(statement, self._separator(statement).join(parts))
        elif module not in homes:
            assert statement.module is not None
            self._replace(statement.module, next(iter(homes)))

    def _from_statement(self, statement: cst.ImportFrom, home: str, aliases: Sequence[cst.ImportAlias]) -> str:
        *others, last = aliases
        if statement.lpar is None:
            last = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        module = cst.parse_expression(home)
        alone = statement.with_changes(module=module, names=[*others, last], semicolon=cst.MaybeSentinel.DEFAULT)
        return self._wrapper.module.code_for_node(alone)

    def _port_module_of(self, star: cst.ImportFrom) -> None:
        assert star.module is not None
        name = get_full_name_for_node(star.module)
        assert name is not None
        verdict = self._judge.verdict(name)
        if verdict.target is None:
            self._mark(star, verdict)
        else:
            self._replace(star.module, _home(verdict.target))

    def _add_imports(self, statement: cst.Import | cst.ImportFrom) -> None:
        for module in sorted(self._extra.get(statement, ())):
            position = self._spans[statement].start
            self._edits.append(Edit(position, position, f"import {module}{self._separator(statement)}"))

    def _separator(self, statement: cst.CSTNode) -> str:
        """Between two statements: a new line, unless other statements are on this one."""
        line = self._parents[statement]
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            return newline_of(self._source) + indent_at(self._source, self._spans[statement].start)
        return "; "

    # Comments

    def _port_type_comment(self, comment: cst.Comment) -> None:
        if not _TYPE_COMMENT.match(comment.value) or not any(name == "ray" for _, name in self._program.groups):
            return

        def renamed(found: re.Match[str]) -> str:
            return self._judge.verdict(found[0]).target or found[0]

        text = _NAME_IN_TYPE.sub(renamed, comment.value)
        if text != comment.value:
            self._replace(comment, text)

    def _mark(self, node: cst.CSTNode, verdict: Verdict) -> None:
        if verdict.advice:
            statement = statement_around(node, self._parents)
            mark = Mark(self._start(statement), verdict.advice)
            self._marks.setdefault((mark.position, mark.advice), mark)

    def _start(self, statement: cst.CSTNode) -> int:
        first = statement
        if isinstance(statement, cst.FunctionDef | cst.ClassDef) and statement.decorators:
            first = statement.decorators[0]
        return self._spans[first].start

    def _mark_edits(self, all_marks: list[Mark]) -> list[Edit]:
        """Comments above the statements that have none yet."""
        edits = []
        newline = newline_of(self._source)
        for position, marks in groupby(all_marks, _position):
            start = line_start(self._source, position)
            there = self._comments_above(start)
            for mark in marks:
                if mark.advice not in there:
                    edits.append(Edit(start, start, f"{indent_at(self._source, position)}{MARK}{mark.advice}{newline}"))
        return edits

    def _comments_above(self, start: int) -> set[str]:
        found = set()
        for line in reversed(self._source[:start].decode().splitlines()):
            if not line.lstrip().startswith("#"):
                break
            found.add(line.lstrip().removeprefix(MARK))
        return found

    def _replace(self, node: cst.CSTNode, text: str) -> None:
        span = self._spans[node]
        self._edits.append(Edit(span.start, span.start + span.length, text))


def _position(mark: Mark) -> int:
    return mark.position


def _home(module: str) -> str:
    """Where to import it from: what paceline.ray only passes on, from its own module."""
    return module.removeprefix("paceline.ray.") if module.startswith("paceline.ray.cloudpickle") else module
