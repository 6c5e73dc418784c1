"""Rewriters of messages, compiled once from the schemas and the table of field classes.

A rewriter visits only the fields of a message that need rewriting. In a response, an array element with another
tenant's name is left out; anywhere else such a name rejects the whole message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.tenancy.field_classes import ENTITIES, NAMES, FieldClass
from broker.tenancy.scope import LOG_DIRECTORY, ForeignName, TenantScope
from common.pacing import Work
from kraft.records import ResourceType
from wire.apis import Api

Rewrite = Callable[[TenantScope, Any], None]
"""Rewrites one struct in place. Raises ForeignName for a response."""
RewriteWork = Callable[[TenantScope, Any], Work[None]]
Classes = Mapping[str, Mapping[str, FieldClass]]
Entities = Mapping[str, FieldClass | None]
Names = Mapping[str, FieldClass]

FIELD_COST = 2  # units of `common.pacing`
_BYTES = ("string", "bytes", "uuid", "records")
_NAMES = (FieldClass.TOPIC_NAME, FieldClass.GROUP_ID, FieldClass.TRANSACTIONAL_ID, FieldClass.COORDINATOR_KEY)
_NODE_IDS = ("node_id", "broker_id")
_CONFIG_GROUP = 32  # Kafka's number of the resource type GROUP in configs


class UnclassifiedField(ValueError):
    """A field of a message that tenants send or receive is in no table."""


def classify(
    message: str, path: str, field: Any, classes: Classes, entities: Entities, names: Names
) -> FieldClass | None:
    """The class of a field, None if it cannot hold a name. Raises UnclassifiedField."""
    entity = field._entity_type
    if entity is not None:
        if entity not in entities:
            raise UnclassifiedField(f"{message} {path}: entityType {entity}")
        return entities[entity]
    if not any(part in field.type_str for part in _BYTES):
        return None
    found = classes.get(message, {}).get(path) or names.get(path.rpartition(".")[2])
    if found is None:
        raise UnclassifiedField(f"{message} {path}")
    return found


class Compiler:
    """Compiles one API at a time. `classes`: by message and path; `entities` and `names`: see `field_classes`."""

    def __init__(self, classes: Classes, entities: Entities = ENTITIES, names: Names = NAMES) -> None:
        self._classes = classes
        self._entities = entities
        self._names = names

    def inward(self, api: Api) -> Rewrite | None:
        """The rewriter of the API's requests; None if there is nothing to rewrite."""
        return self._struct(api, api.request.__name__, api.request._struct, (), _inward)

    def outward(self, api: Api) -> Rewrite | None:
        """The rewriter of the API's responses."""
        return self._struct(api, api.response.__name__, api.response._struct, (), _outward)

    def inward_work(self, api: Api) -> RewriteWork | None:
        """`inward` in slices."""
        return self._struct_work(api, api.request.__name__, api.request._struct, (), _inward)

    def outward_work(self, api: Api) -> RewriteWork | None:
        """`outward` in slices."""
        return self._struct_work(api, api.response.__name__, api.response._struct, (), _outward)

    def _struct_work(
        self, api: Api, message: str, struct: Any, path: tuple[str, ...], rewrite: Callable[..., Rewrite | None]
    ) -> RewriteWork | None:
        """Lists of structures are rewritten element by element, other fields as in `_struct`."""
        steps: list[RewriteWork] = []
        versions = range(api.min_version, api.max_version + 1)
        for name, field in struct.fields.items():
            if not any(field.for_version_q(version) for version in versions):
                continue
            if field.is_struct_array():
                inner = self._struct_work(api, message, field, (*path, name), rewrite)
                if inner is not None:
                    steps.append(_each_work(name, inner))
                continue
            step = self._field(api, message, struct, name, field, path, rewrite)
            if step is not None:
                steps.append(_in_one_go(step))
        return _all_work(steps) if steps else None

    def _struct(
        self, api: Api, message: str, struct: Any, path: tuple[str, ...], rewrite: Callable[..., Rewrite | None]
    ) -> Rewrite | None:
        steps: list[Rewrite] = []
        versions = range(api.min_version, api.max_version + 1)
        for name, field in struct.fields.items():
            if any(field.for_version_q(version) for version in versions):
                step = self._field(api, message, struct, name, field, path, rewrite)
                if step is not None:
                    steps.append(step)
        return _all(steps) if steps else None

    def _field(
        self,
        api: Api,
        message: str,
        struct: Any,
        name: str,
        field: Any,
        path: tuple[str, ...],
        rewrite: Callable[..., Rewrite | None],
    ) -> Rewrite | None:
        below = (*path, name)
        if field.is_struct_array() or field.is_struct():
            inner = self._struct(api, message, field, below, rewrite)
            if inner is None:
                return None
            return _each(name, inner) if field.is_struct_array() else _child(name, inner)
        field_class = classify(message, ".".join(below), field, self._classes, self._entities, self._names)
        return None if field_class is None else rewrite(field_class, name, field.is_array(), struct.fields)


def _all(steps: list[Rewrite]) -> Rewrite:
    if len(steps) == 1:
        return steps[0]

    def rewrite(scope: TenantScope, item: Any) -> None:
        for step in steps:
            step(scope, item)

    return rewrite


def _each(name: str, inner: Rewrite) -> Rewrite:
    def rewrite(scope: TenantScope, item: Any) -> None:
        elements = getattr(item, name)
        if not elements:
            return
        kept = []
        for element in elements:
            try:
                inner(scope, element)
            except ForeignName:
                scope.leave_out()
            else:
                kept.append(element)
        if len(kept) != len(elements):
            setattr(item, name, kept)

    return rewrite


def _each_work(name: str, inner: RewriteWork) -> RewriteWork:
    def rewrite(scope: TenantScope, item: Any) -> Work[None]:
        elements = getattr(item, name)
        if not elements:
            return
        kept = []
        for element in elements:
            try:
                yield from inner(scope, element)
            except ForeignName:
                scope.leave_out()
            else:
                kept.append(element)
        if len(kept) != len(elements):
            setattr(item, name, kept)

    return rewrite


def _in_one_go(step: Rewrite) -> RewriteWork:
    def rewrite(scope: TenantScope, item: Any) -> Work[None]:
        step(scope, item)
        yield FIELD_COST

    return rewrite


def _all_work(steps: list[RewriteWork]) -> RewriteWork:
    def rewrite(scope: TenantScope, item: Any) -> Work[None]:
        for step in steps:
            yield from step(scope, item)

    return rewrite


def _child(name: str, inner: Rewrite) -> Rewrite:
    def rewrite(scope: TenantScope, item: Any) -> None:
        child = getattr(item, name)
        if child is not None:
            inner(scope, child)

    return rewrite


def _value(name: str, translate: Callable[[TenantScope, Any], Any]) -> Rewrite:
    def rewrite(scope: TenantScope, item: Any) -> None:
        setattr(item, name, translate(scope, getattr(item, name)))

    return rewrite


def _inward(field_class: FieldClass, name: str, is_array: bool, siblings: Mapping[str, Any]) -> Rewrite | None:
    if field_class in _NAMES:
        return _value(name, _names_in if is_array else TenantScope.name_in)
    if field_class is FieldClass.TOPIC_ID:
        return _value(name, TenantScope.id_in)
    if field_class is FieldClass.CONFIG_RESOURCE:
        return _config_resource(name, TenantScope.name_in)
    if field_class is FieldClass.PRINCIPAL:
        return _value(name, TenantScope.principal_in)
    if field_class is FieldClass.PRINCIPAL_NAME:
        return _value(name, lambda scope, value: scope.name_in(value) if value else value)
    if field_class is FieldClass.ACL_RESOURCE:
        return _acl_resource(name, _pattern_field(siblings), TenantScope.resource_in)
    return None


def _outward(field_class: FieldClass, name: str, is_array: bool, siblings: Mapping[str, Any]) -> Rewrite | None:
    if field_class in _NAMES:
        return _value(name, _names_out if is_array else TenantScope.name_out)
    if field_class is FieldClass.TOPIC_ID:
        return _value(name, TenantScope.id_out)
    if field_class is FieldClass.CONFIG_RESOURCE:
        return _config_resource(name, TenantScope.name_out)
    if field_class is FieldClass.PRINCIPAL:
        return _value(name, TenantScope.principal_out)
    if field_class is FieldClass.PRINCIPAL_NAME:
        return _value(name, TenantScope.name_out)
    if field_class is FieldClass.ACL_RESOURCE:
        return _acl_resource(name, _pattern_field(siblings), TenantScope.resource_out)
    if field_class is FieldClass.HOST:
        return _host(name, next(one for one in _NODE_IDS if one in siblings))
    if field_class is FieldClass.CLUSTER_ID:
        return _value(name, lambda scope, value: scope.tenant if value else value)
    if field_class is FieldClass.LOG_DIRECTORY:
        return _value(name, lambda _, value: LOG_DIRECTORY if value else value)
    if field_class is FieldClass.TEXT:
        return _text(name, "error_code" in siblings)
    return None


def _names_in(scope: TenantScope, names: list[str] | None) -> list[str] | None:
    return None if names is None else [scope.prefix + name for name in names]


def _names_out(scope: TenantScope, names: list[str] | None) -> list[str] | None:
    if names is None:
        return None
    cut = len(scope.prefix)
    kept = [name[cut:] for name in names if name.startswith(scope.prefix)]
    scope.leave_out(len(names) - len(kept))
    return kept


def _pattern_field(siblings: Mapping[str, Any]) -> str:
    return next(one for one in ("pattern_type", "resource_pattern_type") if one in siblings)


def _acl_resource(
    name: str, pattern_name: str, translate: Callable[[TenantScope, str, int], tuple[str, int]]
) -> Rewrite:
    def rewrite(scope: TenantScope, item: Any) -> None:
        resource, pattern = translate(scope, getattr(item, name), getattr(item, pattern_name))
        setattr(item, name, resource)
        setattr(item, pattern_name, pattern)

    return rewrite


def _config_resource(name: str, translate: Callable[[TenantScope, str | None], str | None]) -> Rewrite:
    def rewrite(scope: TenantScope, item: Any) -> None:
        if item.resource_type in (ResourceType.TOPIC, _CONFIG_GROUP):
            setattr(item, name, translate(scope, getattr(item, name)))

    return rewrite


def _host(name: str, node_name: str, port_name: str = "port") -> Rewrite:
    def rewrite(scope: TenantScope, item: Any) -> None:
        node = getattr(item, node_name)
        address = scope.proxies.of(node, scope.tenant) if getattr(item, name) and node >= 0 else None
        if address is not None:
            setattr(item, name, address[0])
            setattr(item, port_name, address[1])

    return rewrite


def _text(name: str, has_code: bool) -> Rewrite:
    def rewrite(scope: TenantScope, item: Any) -> None:
        text = getattr(item, name)
        if text:
            setattr(item, name, scope.text_out(text, item.error_code if has_code else None))

    return rewrite
