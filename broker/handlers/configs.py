"""Settings: DescribeConfigs 1-4, AlterConfigs 0-2, IncrementalAlterConfigs 0-1, ListConfigResources 0-1.

Behaviour: every setting is described from its declaration, with its value's source; synonyms are all places that set a
value, in order of precedence. Sensitive values are never shown. The controller decides changes; the response is sent
when this broker's image has them.
What concerns one broker alone, its loggers' levels and its certificates, that broker changes itself.
ListConfigResources lists topics, brokers, their loggers and subscriptions to clients' metrics. Groups may be requested,
but have no settings here.
Versions: DescribeConfigs 3 adds types and documentation; ListConfigResources 0 lists only client metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from enum import IntEnum
from typing import Any, TypeVar

from broker.handlers.certificate_reloads import CertificateReloads
from broker.handlers.client_view import ClientView
from broker.handlers.logger_levels import LoggerLevels
from broker.requests.context import RequestContext
from broker.requests.failures import altered_config, why_of
from broker.requests.forwarding import Forwarder
from common.client_metrics import CLIENT_METRICS_SETTINGS
from common.errors import ErrorCode, ProtocolError
from common.node_settings.catalogue import NODE_SETTINGS
from common.pacing import Work
from common.settings import Setting
from common.topic_settings import TOPIC_SETTINGS
from kraft.image.configs import BROKER_LOGGER, GROUP, ConfigSource
from kraft.image.metadata import MetadataImage
from kraft.records import ResourceType
from kraft.topic_names import check_topic_name
from wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    changed,
)

TYPES_FROM = 1  # ListConfigResources
ROW_COST = 3  # units of `common.pacing`

_Described = DescribeConfigsRequest.DescribeConfigsResource
_OneChanged = IncrementalAlterConfigsRequest.AlterConfigsResource
_Changed = AlterConfigsRequest.AlterConfigsResource | _OneChanged
A = TypeVar("A", AlterConfigsResponse, IncrementalAlterConfigsResponse)
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult
_Synonym = _Config.DescribeConfigsSynonym
_Listed = ListConfigResourcesResponse.ConfigResource
_KNOWN = frozenset({*ResourceType, BROKER_LOGGER, GROUP})


_METRICS = frozenset({int(ResourceType.CLIENT_METRICS)})


class ConfigType(IntEnum):
    """Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


_TYPES = {
    "boolean": ConfigType.BOOLEAN,
    "string": ConfigType.STRING,
    "int": ConfigType.INT,
    "long": ConfigType.LONG,
    "double": ConfigType.DOUBLE,
    "list": ConfigType.LIST,
}

Source = tuple[str, str, ConfigSource]
"""A setting's name, its value as text, and its source."""


class ConfigHandlers:
    """One method per API. `given`: the node's static settings as text, from its file or command line."""

    def __init__(
        self,
        forwarder: Forwarder,
        node_id: int,
        given: Mapping[str, str],
        certificates: CertificateReloads,
        loggers: LoggerLevels,
    ) -> None:
        self._certificates = certificates
        self._loggers = loggers
        self._forwarder = forwarder
        self._node_id = node_id
        self._given = given
        self._shared_of: object = None
        self._shared: dict[tuple[str, bool, bool], list[_Config]] = {}

    # DescribeConfigs ---------------------------------------------------------------------------------------

    def describe_configs(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            try:
                _check_tenant(context, resource)
                configs, message, code = self._describe(resource, request), None, ErrorCode.NONE
            except ProtocolError as error:
                configs, message, code = [], error.message or None, error.code
            results.append(
                _Result(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=configs,
                )
            )
        return DescribeConfigsResponse(results=results)

    def _describe(self, resource: _Described, request: DescribeConfigsRequest) -> list[_Config]:
        """Rows that many resources share are made once."""
        image = self._forwarder.image
        if resource.resource_type == ResourceType.TOPIC:
            check_topic_name(resource.resource_name)
            if resource.resource_name not in image.topics:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            overrides = image.configs.topic(resource.resource_name)
            rows = self._shared_rows(image, request, "").copy()
            for number, setting in enumerate(TOPIC_SETTINGS):
                if setting.name in overrides:
                    sources = self._topic_sources(image, resource.resource_name, setting)
                    rows[number] = _config(setting, sources, False, request)
        elif resource.resource_type == ResourceType.BROKER:
            if resource.resource_name == str(self._node_id):
                rows = self._shared_rows(image, request, resource.resource_name)
            else:
                found = self._broker_settings(image, resource.resource_name)
                rows = [_config(setting, sources, read_only, request) for setting, sources, read_only in found]
        elif resource.resource_type == ResourceType.CLIENT_METRICS:
            rows = _client_metrics(image, request, resource.resource_name)
        elif resource.resource_type == BROKER_LOGGER:
            rows = [_level(*one) for one in self._loggers.describe(resource.resource_name).items()]
        elif resource.resource_type == GROUP:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Groups have no settings here.")
        else:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Resource type {resource.resource_type} is not supported.")
        keys = set(resource.configuration_keys or ())
        return [row for row in rows if row.name in keys] if keys else rows

    def _shared_rows(self, image: MetadataImage, request: DescribeConfigsRequest, broker: str) -> list[_Config]:
        """The rows of a topic without settings of its own, or of this broker; cached until the image's settings
        change."""
        if self._shared_of is not image.configs:
            self._shared_of, self._shared = image.configs, {}
        key = (broker, bool(request.include_synonyms), bool(request.include_documentation))
        rows = self._shared.get(key)
        if rows is None:
            if broker:
                found = self._broker_settings(image, broker)
            else:
                found = [(setting, self._default_sources(image, setting), False) for setting in TOPIC_SETTINGS]
            rows = [_config(setting, sources, read_only, request) for setting, sources, read_only in found]
            self._shared[key] = rows
        return rows

    def _topic_sources(self, image: MetadataImage, topic: str, setting: Setting) -> list[Source]:
        sources: list[Source] = []
        override = image.configs.topic(topic).get(setting.name)
        if override is not None:
            sources.append((setting.name, override, ConfigSource.TOPIC))
        return sources + self._default_sources(image, setting)

    def _default_sources(self, image: MetadataImage, setting: Setting) -> list[Source]:
        """The sources of a topic setting's value other than the topic itself."""
        sources: list[Source] = []
        for synonym in setting.synonyms:
            sources.extend(self._given_sources(image, synonym))
        default_name = setting.synonyms[0] if setting.synonyms else setting.name
        sources.append((default_name, setting.text(setting.default), ConfigSource.DEFAULT))
        return sources

    def _given_sources(self, image: MetadataImage, name: str) -> list[Source]:
        """The sources of a broker setting's value, in order of precedence."""
        places = (
            (image.configs.broker(self._node_id), ConfigSource.DYNAMIC_BROKER),
            (image.configs.cluster(), ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self._given, ConfigSource.STATIC_BROKER),
        )
        return [(name, given[name], source) for given, source in places if name in given]

    def _broker_settings(self, image: MetadataImage, name: str) -> list[tuple[Setting, list[Source], bool]]:
        """All settings of this broker; for the resource "" the cluster's dynamic settings."""
        if not name:
            cluster = image.configs.cluster()
            return [
                (setting, [(setting.name, cluster[setting.name], ConfigSource.DYNAMIC_DEFAULT_BROKER)], False)
                for setting in (*NODE_SETTINGS, *_of_listeners_and_unknown(cluster))
                if setting.name in cluster
            ]
        if name != str(self._node_id):
            message = f"Unexpected broker id, expected {self._node_id} or empty string, but received {name}"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        found = []
        given = {**self._given, **image.configs.cluster(), **image.configs.broker(self._node_id)}
        for setting in (*NODE_SETTINGS, *_of_listeners_and_unknown(given)):
            default = (setting.name, setting.text(setting.default), ConfigSource.DEFAULT)
            found.append((setting, [*self._given_sources(image, setting.name), default], setting.needs_restart))
        return found

    # ListConfigResources -----------------------------------------------------------------------------------

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse | Work[ListConfigResourcesResponse]:
        """No types means all. A tenant sees only topics, as in DescribeConfigs."""
        types = (set(request.resource_types) or _KNOWN) if context.api_version >= TYPES_FROM else _METRICS
        if not types <= _KNOWN:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
        return self._list(context, types)

    def _list(self, context: RequestContext, types: Set[int]) -> Work[ListConfigResourcesResponse]:
        rows: list[_Listed] = []
        image, tenant = self._forwarder.image, context.tenant
        of_brokers = types & {ResourceType.BROKER, BROKER_LOGGER}
        if of_brokers and tenant is None:
            brokers = ClientView(image, context.listener, self._node_id).brokers()
            rows = [
                _Listed(resource_name=str(one.broker_id), resource_type=kind)
                for kind in sorted(of_brokers)
                for one in brokers
            ]
        if ResourceType.CLIENT_METRICS in types and tenant is None:
            subscriptions = image.configs.client_metrics
            rows += [_Listed(resource_name=name, resource_type=ResourceType.CLIENT_METRICS) for name in subscriptions]
        if ResourceType.TOPIC in types:
            names = image.topics.ids if tenant is None else image.topics.names_by_tenant.get(tenant, {})
            for name in names:
                rows.append(_Listed(resource_name=name, resource_type=ResourceType.TOPIC))
                yield ROW_COST
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=rows)

    # changes -----------------------------------------------------------------------------------------------

    async def alter_configs(self, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
        return await self._alter(context, request, AlterConfigsResponse)

    async def incremental_alter_configs(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        response = IncrementalAlterConfigsResponse
        done: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = []
        others: list[_OneChanged] = []
        named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        for resource in request.resources:
            change = self._own_change(context, resource)
            if change is None:
                others.append(resource)
                continue
            try:
                if named[resource.resource_type, resource.resource_name] > 1:
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                await change(resource, request.validate_only)
                done.append(altered_config(response, resource, why_of(ProtocolError(ErrorCode.NONE))))
            except ProtocolError as error:
                done.append(altered_config(response, resource, why_of(error)))
        if done and not others:
            return response(responses=done)
        if not done:
            return await self._alter(context, request, response)
        answer = await self._alter(context, changed(request, resources=others), response)
        return changed(answer, responses=[*answer.responses, *done])

    def _own_change(
        self, context: RequestContext, resource: _OneChanged
    ) -> Callable[[_OneChanged, bool], Awaitable[None]] | None:
        """What changes the resource, if this broker does it without the controller. Tenants change no broker."""
        if context.tenant is None:
            for own in (self._certificates, self._loggers):
                if own.concerns(resource):
                    return own.change
        return None

    async def _alter(
        self,
        context: RequestContext,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        response_class: type[A],
    ) -> A:
        """`response_class`: the response type of the request."""
        refused: list[Any] = []
        allowed: list[Any] = []
        for resource in request.resources:
            try:
                _check_tenant(context, resource)
                allowed.append(resource)
            except ProtocolError as error:
                refused.append(altered_config(response_class, resource, why_of(error)))
        if refused and not allowed:
            return response_class(responses=refused)
        sent = changed(request, resources=allowed) if refused else request
        answer: Any = await self._forwarder.serve(context, sent)
        altered: A = changed(answer, responses=[*answer.responses, *refused]) if refused else answer
        return altered


def _client_metrics(image: MetadataImage, request: DescribeConfigsRequest, name: str) -> list[_Config]:
    """The settings of a subscription, in order of their names. One that does not exist has the defaults."""
    if not name:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    given = image.configs.client_metrics.get(name, {})
    rows = []
    for setting in sorted(CLIENT_METRICS_SETTINGS, key=lambda one: one.name):
        if setting.name in given:
            source = (setting.name, given[setting.name], ConfigSource.CLIENT_METRICS)
            rows.append(_config(setting, [source], False, request))
        else:
            source = (setting.name, setting.text(setting.default), ConfigSource.DEFAULT)
            rows.append(changed(_config(setting, [source], False, request), synonyms=[]))
    return rows


def _level(logger: str, level: str) -> _Config:
    return _Config(
        name=logger,
        value=level,
        read_only=False,
        config_source=int(ConfigSource.DYNAMIC_BROKER_LOGGER),
        is_default=False,
        is_sensitive=False,
        synonyms=[],
    )


def _of_listeners_and_unknown(given: Iterable[str]) -> list[Setting]:
    """The settings among these names that NODE_SETTINGS does not have: settings with a listener's prefix, and unknown
    ones, whose values are not shown, as in Apache Kafka."""
    listed = {setting.name for setting in NODE_SETTINGS}
    return [
        NODE_SETTINGS.get(name) or Setting(name, "string", "", "", sensitive=True, update="cluster-wide")
        for name in given
        if name not in listed
    ]


def _check_tenant(context: RequestContext, resource: _Changed | _Described) -> None:
    """Tenants may only use settings of topics. Raises CLUSTER_AUTHORIZATION_FAILED."""
    if context.tenant is not None and resource.resource_type != ResourceType.TOPIC:
        raise ProtocolError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Tenants may only use settings of topics.")


def _config(setting: Setting, sources: list[Source], read_only: bool, request: DescribeConfigsRequest) -> _Config:
    _, value, source = sources[0]
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            _Synonym(name=name, value=None if setting.sensitive else text, source=int(where))
            for name, text, where in sources
        ]
    return _Config(
        name=setting.name,
        value=None if setting.sensitive else value,
        read_only=read_only,
        config_source=int(source),
        is_default=source is ConfigSource.DEFAULT,
        is_sensitive=setting.sensitive,
        synonyms=synonyms,
        config_type=ConfigType.PASSWORD if setting.sensitive else _TYPES[setting.type_name],
        documentation=setting.doc if request.include_documentation else None,
    )
