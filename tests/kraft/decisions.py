"""What a controller decides, whole: the decisions of `kraft.controller`, each of which is work in slices, at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from common.pacing import Work, at_once
from kraft.controller.acls import create_acls, delete_acls
from kraft.controller.configs import alter_configs, incremental_alter_configs
from kraft.controller.elections import return_leaders
from kraft.controller.features import update_features
from kraft.controller.partitions import alter_partition
from kraft.controller.reassignment_requests import alter_reassignments, list_reassignments
from kraft.controller.requested_elections import elect_leaders
from kraft.controller.scram_credentials import alter_user_scram_credentials
from kraft.controller.tenants import move_tenant
from kraft.controller.topics import create_partitions, create_topics, delete_topics
from kraft.image.tenant_usage import usage_work

P = ParamSpec("P")
T = TypeVar("T")


def _whole(work: Callable[P, Work[T]]) -> Callable[P, T]:
    @wraps(work)
    def decide(*args: P.args, **kwargs: P.kwargs) -> T:
        return at_once(work(*args, **kwargs))

    return decide


decide_create_acls = _whole(create_acls)
decide_delete_acls = _whole(delete_acls)
decide_incremental_alter_configs = _whole(incremental_alter_configs)
decide_alter_configs = _whole(alter_configs)
changes_to_preferred_leaders = _whole(return_leaders)
decide_update_features = _whole(update_features)
decide_alter_partition = _whole(alter_partition)
decide_alter_partition_reassignments = _whole(alter_reassignments)
decide_list_partition_reassignments = _whole(list_reassignments)
decide_elect_leaders = _whole(elect_leaders)
decide_alter_user_scram_credentials = _whole(alter_user_scram_credentials)
decide_move_tenant = _whole(move_tenant)
decide_create_topics = _whole(create_topics)
decide_delete_topics = _whole(delete_topics)
decide_create_partitions = _whole(create_partitions)
usage_by_tenant = _whole(usage_work)
