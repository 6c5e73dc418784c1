"""Levels of this broker's loggers: the resource BROKER_LOGGER of DescribeConfigs and IncrementalAlterConfigs.

Behaviour (KIP-412): a change holds at once and until the broker restarts. Nothing is stored in the metadata. Each
broker handles only requests for itself. The loggers are the root logger and those of Tidelog's own modules and
packages. Those of libraries are not among them: some log the headers of requests, which hold credentials.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from common.errors import ErrorCode, ProtocolError
from kraft.image.configs import BROKER_LOGGER
from wire.messages import IncrementalAlterConfigsRequest

logger = logging.getLogger(__name__)

ROOT = "root"
ROOMS = frozenset(
    {"audit", "broker", "common", "kraft", "object_store", "records", "storage", "tidelog", "tiering", "wire"}
)  # the first part of our loggers' names
LEVELS = {
    "TRACE": logging.DEBUG // 2,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Log4j's names, from the lowest. TRACE shows the same as DEBUG: nothing is logged below that."""

_SET, _DELETE = 0, 1  # Kafka's AlterConfigOp
_OPERATIONS = {2: "APPEND", 3: "SUBTRACT"}
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
_Change = _Resource.AlterableConfig


class LoggerLevels:
    """`loggers`: the process's, from the standard library."""

    def __init__(self, node_id: int, loggers: logging.Manager) -> None:
        self._node_id = node_id
        self._loggers = loggers

    def describe(self, broker: str) -> Mapping[str, str]:
        """The level in force of each logger, by its name. Raises INVALID_REQUEST if `broker` is not this one."""
        if not broker:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        if broker != str(self._node_id):
            message = f"Unexpected broker id, expected {self._node_id} but received {broker}"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        return {name: _name_of(self._logger(name).getEffectiveLevel()) for name in self._names()}

    def concerns(self, resource: _Resource) -> bool:
        """Whether a resource of IncrementalAlterConfigs is a broker's loggers."""
        return resource.resource_type == BROKER_LOGGER

    async def change(self, resource: _Resource, validate_only: bool) -> None:
        """Raises ProtocolError; then nothing has changed."""
        if resource.resource_name != str(self._node_id):
            message = f"Unexpected node id. Expected {self._node_id}, but received {resource.resource_name}"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        names = set(self._names())
        seen: set[str] = set()
        for change in resource.configs:
            if change.name in seen:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{change.name} is given twice.")
            _check(change, names)
            seen.add(change.name)
        if not validate_only:
            for change in resource.configs:
                self._apply(change)

    def _apply(self, change: _Change) -> None:
        level = change.value if change.config_operation == _SET else None
        self._logger(change.name).setLevel(LEVELS[level] if level else logging.NOTSET)
        logger.warning("a logger's level changed", extra={"changed": change.name, "to": level or "inherited"})

    def _names(self) -> Iterable[str]:
        ours = (name for name in tuple(self._loggers.loggerDict) if name.partition(".")[0] in ROOMS)
        return (ROOT, *sorted(ours))

    def _logger(self, name: str) -> logging.Logger:
        return self._loggers.root if name == ROOT else self._loggers.getLogger(name)


def _check(change: _Change, names: set[str]) -> None:
    """Raises INVALID_REQUEST, INVALID_CONFIG."""
    operation = change.config_operation
    if operation not in (_SET, _DELETE):
        named = _OPERATIONS.get(operation)
        what = f"{named} operation" if named else f"Unknown operation type {operation}"
        message = f"{what} is not allowed for the BROKER_LOGGER resource"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    if change.name not in names:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    if operation == _DELETE and change.name == ROOT:
        message = f"Removing the log level of the {ROOT} logger is not allowed"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    if operation == _SET and change.value is None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{change.name} has no value.")
    if operation == _SET and change.value not in LEVELS:
        message = (
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}"
        )
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)


def _name_of(level: int) -> str:
    """The lowest of Log4j's levels that lets everything from `level` on through."""
    return next((name for name, number in LEVELS.items() if level <= number), "OFF")
