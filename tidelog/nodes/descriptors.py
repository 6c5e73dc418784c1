"""Divides a node's limit of open files among itself, its logs, the tier's cache and clients.

Every connection is an open file too. Without a division many clients would leave none for segments, and a log directory
that cannot open its files goes offline.
"""

from __future__ import annotations

import resource
from dataclasses import replace

from broker.config import BrokerConfig
from common.settings import SettingError

OWN = 192  # internal connections, authenticated or not, the health page, the node's own files
LOGS_MIN, CLIENTS_MIN = 64, 64
CACHE_MIN = 4  # of `OWN`


def raise_limit() -> int:
    """Raise the limit to what the system allows, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 31


def divide(config: BrokerConfig, limit: int) -> BrokerConfig:
    """`config` with bounds that fit into `limit` open files; clients get what the logs do not need.

    Raises SettingError if the limit is too low for a broker.
    """
    least = OWN + LOGS_MIN + CLIENTS_MIN
    if limit < least:
        raise SettingError(f"open files: the system allows {limit} (ulimit -n), a broker needs at least {least}")
    cached = min(config.tier_reads.tier_cache_open_files_max, (limit - least) // 8)
    logs = min(config.duties.open_files_max, max(LOGS_MIN, (limit - OWN - cached) // 2))
    return replace(
        config,
        duties=replace(config.duties, open_files_max=logs),
        tier_reads=replace(config.tier_reads, tier_cache_open_files_max=max(cached, CACHE_MIN)),
        limits=replace(config.limits, files_max=limit - OWN - cached - logs),
    )
