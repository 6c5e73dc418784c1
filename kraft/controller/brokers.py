"""The life of a broker as the controller sees it: registered, unfenced, shutting down, fenced, unregistered. Pure.

registered (fenced) --heartbeat, caught up, wants it--> unfenced --wants to stop--> in controlled shutdown
      ^                                                    |                               |
      +------ silence, closed connection, own wish, a new incarnation <--------------------+
"""

from __future__ import annotations

from typing import Any

from common.decision import Decision
from common.errors import ErrorCode
from kraft.controller.elections import (
    changes_when_broker_leaves,
    changes_when_broker_returns,
    changes_when_room_is_lacking,
    leads_anything,
)
from kraft.controller.features import ROOM_LEVEL, TIDELOG_VERSION
from kraft.controller.policy import ControllerPolicy
from kraft.image.brokers import BrokerImage
from kraft.image.cells import CELL_NAME
from kraft.image.metadata import MetadataImage
from kraft.records import (
    BrokerRegistrationChangeRecord,
    Cause,
    ConfigRecord,
    Endpoint,
    MetadataRecord,
    RegisterBrokerRecord,
    ResourceType,
    UnregisterBrokerRecord,
)
from wire.messages import BrokerHeartbeatResponse, BrokerRegistrationResponse, UnregisterBrokerResponse, raw_uuid

RACK_CHARACTERS_MAX = 255


def decide_registration(
    image: MetadataImage, request: Any, policy: ControllerPolicy, *, has_session: bool
) -> Decision[MetadataRecord, Any]:
    """BrokerRegistration (62). `has_session`: the process that holds the id now was heard of lately.

    The stop before was clean if the broker knows the epoch of the run that ended, which only the clean-stop marker
    tells it, and kept its log directories. An unclean stop leaves ISR and ELR in the same commit; so does, from the
    ISR alone, any run that is replaced while it was in it. A repeated request of one incarnation changes nothing.
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
    clean = existing is not None and request.previous_broker_epoch == existing.epoch and existing.log_dirs == log_dirs
    cause = Cause.REGISTERED if clean else Cause.UNCLEAN_STOP
    records: list[MetadataRecord] = list(
        changes_when_broker_leaves(image, policy, request.broker_id, cause, unclean=not clean)
    )
    # The registration comes last: should the commit have to be split, nobody is registered who is still in an ISR.
    epoch = image.next_offset + len(records)
    records.append(
        RegisterBrokerRecord(
            request.broker_id,
            incarnation,
            tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in request.listeners),
            request.rack,
            fenced=True,
            log_dirs=log_dirs,
            features={f.name: (f.min_supported_version, f.max_supported_version) for f in request.features},
            clean_stop=clean,
            cell=request.cell,
        )
    )
    return Decision(BrokerRegistrationResponse(error_code=0, broker_epoch=epoch), records)


def _registration_refusal(image: MetadataImage, request: Any) -> ErrorCode | None:
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
    image: MetadataImage, request: Any, policy: ControllerPolicy, *, moves_seen: bool, fencing_seen: bool = True
) -> Decision[MetadataRecord, Any]:
    """BrokerHeartbeat (63). `moves_seen`: the others know that its leaderships have moved. `fencing_seen`:
    a fenced broker knows the metadata as they were when it was first heard again.

    A broker is unfenced when it asks for it (its logs are recovered) and has replayed past its own registration, and
    past its fencing: else one that was cut off would go on with leaderships that others have by now. While it says that
    its disk lacks room, it is looked at anew with each heartbeat what others may take over.
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
        if caught_up and not (request.want_fence or request.want_shut_down or request.offline_log_dirs):
            records = unfence(image, broker, policy)
            fenced = False
    elif request.offline_log_dirs:
        records = fence(image, broker, policy, Cause.BROKER_REQUEST, unclean=True)
        fenced = True
    elif request.want_fence and not request.want_shut_down:
        records = fence(image, broker, policy, Cause.BROKER_REQUEST)
        fenced = True
    elif request.want_shut_down and not broker.in_controlled_shutdown:
        records = _begin_shutdown(image, broker, policy)
    elif request.want_shut_down:
        may_stop = moves_seen and not leads_anything(image, broker.broker_id)
    elif request.lacks_room or broker.lacks_room:
        records = _heed_room(image, broker, policy, lacks_room=request.lacks_room)
    reply = BrokerHeartbeatResponse(error_code=0, is_caught_up=caught_up, is_fenced=fenced, should_shut_down=may_stop)
    return Decision(reply, records)


def decide_unregister(image: MetadataImage, request: Any, policy: ControllerPolicy) -> Decision[MetadataRecord, Any]:
    """UnregisterBroker (64): the broker leaves ISR, ELR and the cluster, and its settings go with it; should it return,
    it is a new one."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Decision(
            UnregisterBrokerResponse(
                error_code=int(ErrorCode.BROKER_ID_NOT_REGISTERED),
                error_message=f"Broker {request.broker_id} is not registered.",
            )
        )
    records: list[MetadataRecord] = list(
        changes_when_broker_leaves(image, policy, broker.broker_id, Cause.BROKER_UNREGISTERED, unclean=True)
    )
    name = str(broker.broker_id)
    records += [ConfigRecord(ResourceType.BROKER, name, key, None) for key in image.configs.broker(broker.broker_id)]
    records.append(UnregisterBrokerRecord(broker.broker_id, broker.epoch))
    return Decision(UnregisterBrokerResponse(error_code=0, error_message=None), records)


def fence(
    image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy, cause: Cause, *, unclean: bool = False
) -> list[MetadataRecord]:
    """The broker leaves every ISR and leads nothing any more. The fencing comes last, so that a split commit leaves
    it to be done again. Nothing for a broker that is fenced."""
    if broker.fenced:
        return []
    records: list[MetadataRecord] = list(
        changes_when_broker_leaves(image, policy, broker.broker_id, Cause.BROKER_FENCED, unclean=unclean)
    )
    records.append(
        BrokerRegistrationChangeRecord(
            broker.broker_id, broker.epoch, fenced=True, in_controlled_shutdown=False, cause=cause
        )
    )
    return records


def unfence(image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy) -> list[MetadataRecord]:
    """The broker is shown to clients again, and leads what had no leader for want of it."""
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(
            broker.broker_id, broker.epoch, fenced=False, in_controlled_shutdown=False, cause=Cause.BROKER_UNFENCED
        )
    ]
    records += changes_when_broker_returns(image, policy, broker.broker_id)
    return records


def _begin_shutdown(image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(
            broker.broker_id, broker.epoch, in_controlled_shutdown=True, cause=Cause.CONTROLLED_SHUTDOWN
        )
    ]
    records += changes_when_broker_leaves(image, policy, broker.broker_id, Cause.CONTROLLED_SHUTDOWN)
    return records


def _heed_room(
    image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy, *, lacks_room: bool
) -> list[MetadataRecord]:
    if image.features.get(TIDELOG_VERSION, 0) < ROOM_LEVEL:
        return []
    records: list[MetadataRecord] = []
    if lacks_room != broker.lacks_room:
        cause = Cause.NO_ROOM if lacks_room else Cause.ROOM_IS_BACK
        records.append(
            BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, cause=cause, lacks_room=lacks_room)
        )
    if lacks_room:
        records += changes_when_room_is_lacking(image, policy, broker.broker_id)
    return records


def _refused(code: ErrorCode) -> Decision[MetadataRecord, Any]:
    return Decision(BrokerHeartbeatResponse(error_code=int(code), is_caught_up=False, is_fenced=True))
