"""Reads a program: which of its names come from Ray, and where they are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node


@dataclass(eq=False)
class Use:
    """A place in the program that uses a name from Ray."""

    node: cst.Name
    name: str
    """What it means there, such as ``ray.tune.run``."""


@dataclass(eq=False)
class Binding:
    """One name that an import statement brings into a scope."""

    statement: cst.Import | cst.ImportFrom
    alias: cst.ImportAlias
    local: str
    imported: str
    """The full name that is imported: ``ray.tune`` for ``from ray import tune``."""

    @property
    def is_package(self) -> bool:
        """Binds ``ray`` itself, whatever it is called: import ray, import ray.tune, import ray as r."""
        return isinstance(self.statement, cst.Import) and (self.imported == "ray" or self.alias.asname is None)

    @property
    def meaning(self) -> str:
        """What the local name stands for."""
        return "ray" if self.is_package else self.imported


@dataclass(eq=False)
class NameGroup:
    """All bindings of one name in one scope, and its uses."""

    bindings: list[Binding] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)


class Program(cst.CSTVisitor):
    """What is found in one program."""

    METADATA_DEPENDENCIES = (metadata.ScopeProvider, metadata.ParentNodeProvider)

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[tuple[int, str], NameGroup] = {}
        self.statements: list[cst.Import | cst.ImportFrom] = []
        self.stars: list[cst.ImportFrom] = []
        self.comments: list[cst.Comment] = []
        self._names: list[cst.Name] = []

    def visit_Import(self, node: cst.Import) -> bool:  # noqa: N802
        for alias in node.names:
            imported = get_full_name_for_node(alias.name) or ""
            if _from_ray(imported):
                local = alias.evaluated_alias or imported.partition(".")[0]
                self._bind(Binding(node, alias, local, imported))
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:  # noqa: N802
        module = get_full_name_for_node(node.module) if node.module and not node.relative else None
        if module is None or not _from_ray(module):
            return False
        if isinstance(node.names, cst.ImportStar):
            self.stars.append(node)
            return False
        for alias in node.names:
            name = alias.evaluated_name
            self._bind(Binding(node, alias, alias.evaluated_alias or name, f"{module}.{name}"))
        return False

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        self._names.append(node)

    def visit_Comment(self, node: cst.Comment) -> None:  # noqa: N802
        self.comments.append(node)

    def leave_Module(self, original_node: cst.Module) -> None:  # noqa: N802
        # Only now all imports are known: a function may use a name that is imported below it.
        for node in self._names:
            group = self._group_of(node)
            if group is not None:
                group.uses.append(Use(node, self._full_name(node, group.bindings[0].meaning)))

    def _bind(self, binding: Binding) -> None:
        scope = self.get_metadata(metadata.ScopeProvider, binding.alias)
        assert scope is not None
        for assignment in scope[binding.local]:
            if isinstance(assignment, metadata.ImportAssignment) and assignment.node is binding.statement:
                scope = assignment.scope  # another one after a `global` statement
        self.groups.setdefault((id(scope), binding.local), NameGroup()).bindings.append(binding)
        if binding.statement not in self.statements:
            self.statements.append(binding.statement)

    def _group_of(self, node: cst.Name) -> NameGroup | None:
        scope = self.get_metadata(metadata.ScopeProvider, node, None)
        if scope is None:  # not a variable: an attribute, a keyword; or in a `global` statement
            if not isinstance(self.get_metadata(metadata.ParentNodeProvider, node), cst.NameItem):
                return None
            return next((group for (_, name), group in self.groups.items() if name == node.value), None)
        for assignment in scope[node.value]:
            if isinstance(assignment, metadata.ImportAssignment):
                group = self.groups.get((id(assignment.scope), node.value))
                if group is not None:
                    return group
        return None

    def _full_name(self, node: cst.Name, meaning: str) -> str:
        parts = [meaning]
        inner: cst.CSTNode = node
        outer = self.get_metadata(metadata.ParentNodeProvider, node)
        while isinstance(outer, cst.Attribute) and outer.value is inner:
            parts.append(outer.attr.value)
            inner, outer = outer, self.get_metadata(metadata.ParentNodeProvider, outer)
        return ".".join(parts)


def _from_ray(module: str) -> bool:
    return module.partition(".")[0] == "ray"


def statement_around(node: cst.CSTNode, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> cst.CSTNode:
    """The statement that has lines of its own above which a comment can stand."""
    while not (
        isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.ExceptHandler | cst.MatchCase)
    ):
        node = parents[node]
    return node
