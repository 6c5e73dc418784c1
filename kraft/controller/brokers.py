"""The broker life cycle at the controller: registered, unfenced, shutting down, fenced, unregistered. Pure.

registered (fenced) --heartbeat, caught up, wants it--> unfenced --wants to stop--> in controlled shutdown
      ^                                                    |                               |
      +------ silence, closed connection, own wish, a new incarnation <--------------------+
"""

from __future__ import annotations

from itertools import islice

from common.decision import Decision
from common.errors import ErrorCode
from common.identifiers import ZERO_UUID
from kraft.batches import MetadataRecord
from kraft.controller.broker_health import allows_health, concerned_by
from kraft.controller.broker_removal import is_listed, piece_of, with_first_piece
from kraft.controller.elections import changes_where_brokers_are_unfit, changes_where_leaders_lack
from kraft.controller.policy import ControllerPolicy
from kraft.features import ROOM_LEVEL, TIDELOG_VERSION
from kraft.image.brokers import BrokerImage
from kraft.image.cells import CELL_NAME
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import (
    HEALTHY,
    BrokerRegistrationChangeRecord,
    Cause,
    ConfigRecord,
    Endpoint,
    Health,
    HealthState,
    RegisterBrokerRecord,
    ResourceType,
    UnregisterBrokerRecord,
)
from wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    raw_uuid,
)

RACK_CHARACTERS_MAX = 255


def decide_registration(
    image: MetadataImage, request: BrokerRegistrationRequest, policy: ControllerPolicy, *, has_session: bool
) -> Decision[MetadataRecord, BrokerRegistrationResponse]:
    """BrokerRegistration (62). `has_session`: the process that has the id now was heard recently.

    The last stop was clean if the broker has kept its log directories and goes on with its last run, which
    `_continues` decides. From this commit on, a broker after an unclean stop counts in no ISR and ELR, and any
    replaced run in no ISR; the partitions that list it change in this commit, or in pieces after it. A repeated request
    of one incarnation changes nothing.
    """
    existing = image.brokers.get(request.broker_id)
    incarnation = raw_uuid(request.incarnation_id)
    code = _registration_refusal(image, request)
    if code is not None:
        return Decision(BrokerRegistrationResponse(error_code=int(code)))
    if existing is not None and existing.incarnation == incarnation:
        return Decision(BrokerRegistrationResponse(error_code=0, broker_epoch=existing.epoch))
    if existing is not None and has_session:
        return Decision(BrokerRegistrationResponse(error_code=int(ErrorCode.DUPLICATE_BROKER_REGISTRATION)))
    log_dirs = tuple(raw_uuid(directory) for directory in request.log_dirs or ())
    start_id = raw_uuid(request.start_id)
    clean = existing is not None and existing.log_dirs == log_dirs and _continues(request, existing, start_id)
    cause = Cause.REGISTERED if clean else Cause.UNCLEAN_STOP
    registration = RegisterBrokerRecord(
        request.broker_id,
        incarnation,
        tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in request.listeners),
        request.rack,
        fenced=True,
        log_dirs=log_dirs,
        features={f.name: (f.min_supported_version, f.max_supported_version) for f in request.features},
        clean_stop=clean,
        cell=request.cell,
        health=HEALTHY if existing is None else existing.health,
        start_id=start_id,
    )
    reply = BrokerRegistrationResponse(error_code=0, broker_epoch=image.next_offset)
    return Decision(reply, with_first_piece(image, policy, [registration], cause))


def _continues(request: BrokerRegistrationRequest, existing: BrokerImage, start_id: bytes) -> bool:
    """Whether the broker has everything that its registered run had: it knows that run's epoch, or the id of its start
    if that run died before it could record its epoch."""
    return request.previous_broker_epoch == existing.epoch or start_id == existing.start_id != ZERO_UUID


def _registration_refusal(image: MetadataImage, request: BrokerRegistrationRequest) -> ErrorCode | None:
    if request.cluster_id != image.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    names = [endpoint.name for endpoint in request.listeners]
    if request.broker_id < 0 or len(set(names)) != len(names):
        return ErrorCode.INVALID_REGISTRATION
    if request.incarnation_id is None or len(request.rack or "") > RACK_CHARACTERS_MAX:
        return ErrorCode.INVALID_REGISTRATION
    if request.cell is not None and not CELL_NAME.fullmatch(request.cell):
        return ErrorCode.INVALID_REGISTRATION
    supported = {f.name: (f.min_supported_version, f.max_supported_version) for f in request.features}
    for name, level in image.features.items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            return ErrorCode.UNSUPPORTED_VERSION
    return None


def decide_heartbeat(
    image: MetadataImage,
    request: BrokerHeartbeatRequest,
    policy: ControllerPolicy,
    *,
    moves_seen: bool,
    fencing_seen: bool = True,
    now_ms: int = 0,
) -> Decision[MetadataRecord, BrokerHeartbeatResponse]:
    """BrokerHeartbeat (63). `moves_seen`: the other brokers know that its leaderships have moved. `fencing_seen`: a
    fenced broker knows the metadata as of when it was first heard again. `now_ms`: wall time, for what is recorded.

    A broker is unfenced when it requests it (its logs are recovered) and has replayed its own registration, its fencing
    and the last piece of it. Otherwise a broker that was cut off would continue leaderships that others have taken, or
    still be listed from before. A broker whose storage is stuck stays unfenced while another one is missing.
    """
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return _refused(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if broker.epoch != request.broker_epoch:
        return _refused(ErrorCode.STALE_BROKER_EPOCH)
    caught_up = request.current_metadata_offset >= broker.epoch and fencing_seen
    records: list[MetadataRecord] = []
    fenced, may_stop = broker.fenced, False
    if broker.fenced:
        may_stop = request.want_shut_down
        wants = caught_up and not (request.want_fence or request.want_shut_down or request.offline_log_dirs)
        wants = wants and not request.storage_stuck
        if wants and not is_listed(image, broker.broker_id):
            records = unfence(image, broker, policy)
            fenced = False
    elif request.offline_log_dirs:
        records = fence(image, broker, policy, Cause.BROKER_REQUEST, unclean=True)
        fenced = True
    elif request.storage_stuck:
        if not image.missing_beside(broker.broker_id):
            records = _fence_stuck(image, broker, policy, now_ms)
            fenced = True
    elif request.want_fence and not request.want_shut_down:
        records = fence(image, broker, policy, Cause.BROKER_REQUEST)
        fenced = True
    elif request.want_shut_down and not broker.in_controlled_shutdown:
        records = _begin_shutdown(image, broker, policy)
    elif request.want_shut_down:
        may_stop = moves_seen and not is_listed(image, broker.broker_id)
    elif request.lacks_room != broker.lacks_room:
        records = _apply_room(image, broker, policy, lacks_room=request.lacks_room)
    reply = BrokerHeartbeatResponse(error_code=0, is_caught_up=caught_up, is_fenced=fenced, should_shut_down=may_stop)
    return Decision(reply, records)


def decide_unregister(
    image: MetadataImage, request: UnregisterBrokerRequest, policy: ControllerPolicy
) -> Decision[MetadataRecord, UnregisterBrokerResponse]:
    """UnregisterBroker (64): remove the broker from the cluster, with its settings, and from every ISR and ELR. If it
    returns, it is a new broker."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Decision(
            UnregisterBrokerResponse(
                error_code=int(ErrorCode.BROKER_ID_NOT_REGISTERED),
                error_message=f"Broker {request.broker_id} is not registered.",
            )
        )
    name = str(broker.broker_id)
    records: list[MetadataRecord] = [
        ConfigRecord(ResourceType.BROKER, name, key, None) for key in image.configs.broker(broker.broker_id)
    ]
    records.append(UnregisterBrokerRecord(broker.broker_id, broker.epoch))
    records = with_first_piece(image, policy, records, Cause.BROKER_UNREGISTERED)
    return Decision(UnregisterBrokerResponse(error_code=0, error_message=None), records)


def fence(
    image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy, cause: Cause, *, unclean: bool = False
) -> list[MetadataRecord]:
    """Fence a broker: it leaves every ISR and all leaderships, in this commit and in pieces after it. `unclean`: it
    leaves every ELR too. Nothing for a broker that is fenced already."""
    if broker.fenced:
        return []
    fencing = BrokerRegistrationChangeRecord(
        broker.broker_id, broker.epoch, fenced=True, in_controlled_shutdown=False, cause=cause, lost_data=unclean
    )
    return with_first_piece(image, policy, [fencing], Cause.BROKER_FENCED)


def unfence(image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy) -> list[MetadataRecord]:
    """Unfence a broker: clients see it again, and it leads partitions that have no leader without it. A disk that did
    not answer works again."""
    was_stuck = broker.health.state is HealthState.STORAGE
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(
            broker.broker_id,
            broker.epoch,
            fenced=False,
            in_controlled_shutdown=False,
            cause=Cause.BROKER_UNFENCED,
            health=HEALTHY if was_stuck else None,
        )
    ]
    after = replayed(image, records)
    index = after.topics.index
    keys = islice(index.leaderless.within(index.with_replica(broker.broker_id)), piece_of(image, policy))
    return [*records, *changes_where_leaders_lack(after, policy, keys, Cause.BROKER_UNFENCED)]


def _fence_stuck(
    image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy, now_ms: int
) -> list[MetadataRecord]:
    """Fence a broker that reports that its disk does not answer; from then on that is its health."""
    cause = Cause.STORAGE_STUCK
    health = Health(HealthState.STORAGE, cause, now_ms, "an operation of its disk does not end")
    fencing = BrokerRegistrationChangeRecord(
        broker.broker_id,
        broker.epoch,
        fenced=True,
        in_controlled_shutdown=False,
        cause=cause,
        health=health if allows_health(image) else None,
    )
    return with_first_piece(image, policy, [fencing], cause)


def _begin_shutdown(image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy) -> list[MetadataRecord]:
    begin = BrokerRegistrationChangeRecord(
        broker.broker_id, broker.epoch, in_controlled_shutdown=True, cause=Cause.CONTROLLED_SHUTDOWN
    )
    return with_first_piece(image, policy, [begin], Cause.CONTROLLED_SHUTDOWN)


def _apply_room(
    image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy, *, lacks_room: bool
) -> list[MetadataRecord]:
    """The broker has run out of disk space, or has room again. Includes the first piece of moves to brokers with room;
    the other pieces, and later opportunities, are in `kraft.controller.piecework`."""
    if image.features.get(TIDELOG_VERSION, 0) < ROOM_LEVEL:
        return []
    cause = Cause.NO_ROOM if lacks_room else Cause.ROOM_IS_BACK
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, cause=cause, lacks_room=lacks_room)
    ]
    if lacks_room:
        after = replayed(image, records)
        keys = dict.fromkeys(islice(concerned_by(after, after.brokers[broker.broker_id]), piece_of(image, policy)))
        records += changes_where_brokers_are_unfit(after, policy, keys)
    return records


def _refused(code: ErrorCode) -> Decision[MetadataRecord, BrokerHeartbeatResponse]:
    return Decision(BrokerHeartbeatResponse(error_code=int(code), is_caught_up=False, is_fenced=True))
