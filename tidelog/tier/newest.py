"""Checks whether the manifests of a deleted topic are its newest, against `__tier_state` while that has the topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.tier.access import read_state
from tiering.upkeep.checking import behind
from tiering.upkeep.inventory import FoundTopic, read_partition

if TYPE_CHECKING:
    from object_store.blocking import BlockingStore
    from tidelog.admin.library_client import AdminClient
    from tiering.bucket.keys import TierRoot

LOOKS = 120  # a deleted topic has its last manifest after half a minute
PAUSE_S = 0.5


def late_partitions(
    client: AdminClient,
    store: BlockingStore,
    root: TierRoot,
    found: FoundTopic,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[dict[int, str], dict[int, str]]:
    """(partitions whose manifests stay behind, partitions whose `__tier_state` cannot be read), each with the reason.

    A manifest that is behind is read again, LOOKS times; then `found` has the newest ones. Raises StoreError.
    """
    late: dict[int, str] = {}
    silent: dict[int, str] = {}
    for look in range(LOOKS):
        late = {}
        for index, partition in found.partitions.items():
            if partition.manifest is None or index in silent:
                continue
            state = read_state(client, found.topic_id, index)
            if isinstance(state, str):
                silent[index] = state
            elif text := behind(state, partition.manifest):
                late[index] = text
        if not late or look == LOOKS - 1:
            break
        pause(PAUSE_S)
        for index in late:
            found.partitions[index] = store.wait(
                partial(read_partition, store.store, root, found.partitions[index].path)
            )
    return late, silent
