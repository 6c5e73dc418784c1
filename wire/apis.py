"""The one table of served APIs: key, versions, who may use them. ApiVersions is computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wire.listeners import ListenerKind


@dataclass(frozen=True, slots=True)
class Api:
    """`announced_min` differs from `min_version` for Produce alone. `kinds` are the listeners that serve it."""

    key: int
    name: str
    min_version: int
    max_version: int
    announced_min: int
    kinds: frozenset[ListenerKind]
    request: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Features:
    """Feature levels for ApiVersions: `finalized` at `epoch` (-1: not known yet), `supported` as (min, max)."""

    epoch: int
    finalized: Mapping[str, int]
    supported: Mapping[str, tuple[int, int]]


APIS: dict[int, Api] = {}


def served(kind: ListenerKind, api_key: int, version: int) -> Api | None:
    """The API if `kind` serves it in this version."""
    raise NotImplementedError


def api_versions(kind: ListenerKind, version: int, features: Features) -> Any:
    """ApiVersionsResponse for a listener of `kind`; `version` is the request's."""
    raise NotImplementedError


def api_versions_unsupported(kind: ListenerKind, correlation: int) -> bytes:
    """The whole frame for an ApiVersions request of an unknown version: v0 form, UNSUPPORTED_VERSION, our range."""
    raise NotImplementedError
