"""Which attributes of which classes the product reads: the types of expressions, followed by their annotations.

Enough of a type checker for typed code: annotated parameters, fields and results, what is assigned to `self`, and
calls that give back what they are given. It follows objects: a read counts for the class that the object is of, not for
every class with an attribute of that name. What it cannot follow is not counted, so a reader has to be annotated.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Types = frozenset[str]
NOTHING: Types = frozenset()
GIVE_BACK = {"replace": 0, "overridden": 0, "under": 1, "of_listener_under": 1}
"""Calls whose result is of the type of this argument."""
RENEW = frozenset({"overridden", "under", "of_listener_under"})
MAKE = frozenset({"group", "own_group"})
"""Methods whose first argument is the class of their result."""
_CALLED = "()"  # begins the type of something that gives the rest when it is called


@dataclass(slots=True)
class _Class:
    bases: list[str]
    fields: dict[str, ast.expr] = field(default_factory=dict)  # annotations
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    assigned: dict[str, tuple[_Scope, ast.expr]] = field(default_factory=dict)  # to self


@dataclass(slots=True)
class _Scope:
    """The names of a function and of those around it."""

    owner: str
    outer: _Scope | None
    names: dict[str, ast.expr | Types] = field(default_factory=dict)


class Reads:
    """What becomes of settings and other fields of the classes that code is configured by.

    `found` has (class, attribute) for every read of one of `attributes`: the object's class, and those that it inherits
    from; `aliases` the fields that are a setting of another group by `same`, with that; `named` the fields whose
    settings are asked for by `declared`; `renewed` the classes, and what they inherit from, whose instances are made
    anew with the settings that hold under an image.
    """

    def __init__(self, sources: Iterable[str], attributes: Iterable[str]) -> None:
        self._attributes = set(attributes)
        self.aliases: dict[tuple[str, str], tuple[str, str]] = {}
        self.named: set[tuple[str, str]] = set()
        self.renewed: set[str] = set()
        self._renewals: list[tuple[ast.expr, _Scope]] = []
        self._classes: dict[str, list[_Class]] = {}
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._globals: dict[str, list[ast.expr]] = {}
        self._looking: set[tuple[str, str]] = set()
        self.found: set[tuple[str, str]] = set()
        trees = [ast.parse(source) for source in sources]
        for tree in trees:
            self._collect(tree)
        self._reads: list[tuple[ast.Attribute, _Scope]] = []
        for tree in trees:
            self._walk(tree.body, _Scope("", None))
        for node, scope in self._reads:
            for name in self._type(node.value, scope):
                self.found.update((one, node.attr) for one in self.ancestry(name))
        for renewal, scope in self._renewals:
            self.renewed.update(one for name in self._type(renewal, scope) for one in self.ancestry(name))

    def ancestry(self, name: str) -> Iterator[str]:
        """The class and what it inherits from; nothing for what is no class of the product."""
        for one in self._classes.get(name, ()):
            yield name
            for base in one.bases:
                yield from self.ancestry(base)

    # collecting ------------------------------------------------------------------------------------------------

    def _collect(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                made = _Class([base.id for base in node.bases if isinstance(base, ast.Name)])
                for statement in node.body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        made.fields[statement.target.id] = statement.annotation
                        if shared := _group_and_field(statement.value, "same"):
                            self.aliases[node.name, statement.target.id] = shared
                            self._attributes.add(statement.target.id)
                    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        made.methods[statement.name] = statement
                self._classes.setdefault(node.name, []).append(made)
        for statement in tree.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._functions.setdefault(statement.name, []).append(statement)
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self._globals.setdefault(statement.targets[0].id, []).append(statement.value)

    def _walk(self, body: Iterable[ast.AST], scope: _Scope) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._walk(node.body, _Scope(node.name, scope))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                inner = _Scope(scope.owner, scope)
                for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                    if argument.annotation is not None:
                        inner.names[argument.arg] = self._annotated(argument.annotation)
                    elif argument.arg == "self":
                        inner.names["self"] = frozenset({scope.owner})
                self._walk(node.body if isinstance(node.body, list) else [node.body], inner)
            else:
                if isinstance(node, ast.Attribute):
                    if node.attr in self._attributes and isinstance(node.ctx, ast.Load):
                        self._reads.append((node, scope))
                elif isinstance(node, ast.Call):
                    self._note_call(node, scope)
                elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                    self._note(node, scope)
                self._walk(ast.iter_child_nodes(node), scope)

    def _note_call(self, node: ast.Call, scope: _Scope) -> None:
        if asked := _group_and_field(node, "declared"):
            self.named.add(asked)
        if (called := _name_called(node)) in RENEW:
            self._renewals.append((node.args[GIVE_BACK[called]], scope))

    def _note(self, node: ast.AST, scope: _Scope) -> None:
        """What names and attributes of self are assigned."""
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            scope.names[node.target.id] = self._annotated(node.annotation)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            self._note_own(node.target, scope, node.annotation, annotated=True)
        elif isinstance(node, ast.NamedExpr):
            scope.names[node.target.id] = node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for one, value in zip(target.elts, node.value.elts, strict=False):
                        self._note_target(one, value, scope)
                else:
                    self._note_target(target, node.value, scope)

    def _note_target(self, target: ast.expr, value: ast.expr, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names.setdefault(target.id, value)
        elif isinstance(target, ast.Attribute):
            self._note_own(target, scope, value, annotated=False)

    def _note_own(self, target: ast.Attribute, scope: _Scope, value: ast.expr, *, annotated: bool) -> None:
        if isinstance(target.value, ast.Name) and target.value.id == "self":
            for one in self._classes.get(scope.owner, ()):
                if annotated:
                    one.fields.setdefault(target.attr, value)
                else:
                    one.assigned.setdefault(target.attr, (scope, value))

    # types -----------------------------------------------------------------------------------------------------

    def _annotated(self, node: ast.expr | None) -> Types:
        if isinstance(node, ast.Name):
            aliases = [self._annotated(value) for value in self._globals.get(node.id, ())]
            return frozenset().union(*aliases) or frozenset({node.id})
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._annotated(ast.parse(node.value, mode="eval").body)
        if isinstance(node, ast.BinOp):
            return self._annotated(node.left) | self._annotated(node.right)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and _is_callable(node.value):
            return frozenset(_CALLED + name for name in self._annotated(node.slice.elts[-1]))
        return NOTHING

    def _type(self, node: ast.expr, scope: _Scope) -> Types:
        if isinstance(node, ast.Name):
            return self._named(node.id, scope)
        if isinstance(node, ast.Attribute):
            return frozenset().union(*(self._attribute(name, node.attr) for name in self._type(node.value, scope)))
        if isinstance(node, ast.Call):
            return self._result(node, scope)
        if isinstance(node, ast.IfExp):
            return self._type(node.body, scope) | self._type(node.orelse, scope)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self._type(value, scope) for value in node.values))
        return NOTHING

    def _named(self, name: str, scope: _Scope | None) -> Types:
        while scope is not None:
            known = scope.names.get(name)
            if isinstance(known, frozenset):
                return known
            if known is not None:
                scope.names[name] = NOTHING  # for what is made of itself
                scope.names[name] = found = self._type(known, scope)
                return found
            scope = scope.outer
        if name in self._classes:
            return frozenset({_CALLED + name})
        results = [self._annotated(function.returns) for function in self._functions.get(name, ())]
        return frozenset(_CALLED + one for result in results for one in result)

    def _attribute(self, name: str, attribute: str) -> Types:
        if (name, attribute) in self._looking:
            return NOTHING
        self._looking.add((name, attribute))
        try:
            for one in self._classes.get(name, ()):
                if attribute in one.fields:
                    return self._annotated(one.fields[attribute])
                if attribute in one.methods:
                    result = self._annotated(one.methods[attribute].returns)
                    is_property = any(getattr(d, "id", "") == "property" for d in one.methods[attribute].decorator_list)
                    return result if is_property else frozenset(_CALLED + each for each in result)
                if attribute in one.assigned:
                    scope, value = one.assigned[attribute]
                    return self._type(value, scope)
                for base in one.bases:
                    if found := self._attribute(base, attribute):
                        return found
            return NOTHING
        finally:
            self._looking.discard((name, attribute))

    def _result(self, node: ast.Call, scope: _Scope) -> Types:
        called = _name_called(node)
        if called in GIVE_BACK and len(node.args) > GIVE_BACK[called]:
            return self._type(node.args[GIVE_BACK[called]], scope)
        if called in MAKE and node.args and isinstance(node.args[0], ast.Name):
            return frozenset({node.args[0].id})
        return frozenset(
            name.removeprefix(_CALLED) for name in self._type(node.func, scope) if name.startswith(_CALLED)
        )


def _is_callable(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "Callable"


def _name_called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _group_and_field(node: ast.expr | None, function: str) -> tuple[str, str] | None:
    """Of a call like `same(Group, "field")`."""
    if isinstance(node, ast.Call) and _name_called(node) == function and len(node.args) >= 2:
        group, name = node.args[:2]
        if isinstance(group, ast.Name) and isinstance(name, ast.Constant):
            return group.id, str(name.value)
    return None
