"""AlterBrokerHealth: operators see brokers' health, put a broker aside and take it back. No I/O."""

from __future__ import annotations

from enum import IntEnum

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from kraft.batches import MetadataRecord
from kraft.controller.broker_health import allows_health, health_records
from kraft.controller.health_duties import HealthDuties
from kraft.controller.policy import ControllerPolicy
from kraft.features import FLEET_LEVEL, TIDELOG_VERSION
from kraft.image.brokers import BrokerImage
from kraft.image.metadata import MetadataImage
from kraft.records import Cause, Health, HealthState
from wire.messages import AlterBrokerHealthRequest, AlterBrokerHealthResponse

_Row = AlterBrokerHealthResponse.DescribedBrokerHealth


class HealthAction(IntEnum):
    DESCRIBE = 0
    DEMOTE = 1
    PROMOTE = 2


def alter_broker_health(
    image: MetadataImage,
    request: AlterBrokerHealthRequest,
    policy: ControllerPolicy,
    duties: HealthDuties,
    now_ms: int,
) -> Decision[MetadataRecord, AlterBrokerHealthResponse]:
    """AlterBrokerHealth (10021). What an operator demotes stays so until an operator promotes it."""
    records: list[MetadataRecord] = []
    code, message = ErrorCode.NONE, None
    try:
        action = HealthAction(request.action)
        if action is not HealthAction.DESCRIBE:
            records = _changed(image, action, request, policy, now_ms)
    except ProtocolError as error:
        code, message = error.code, error.message
    except ValueError:
        code, message = ErrorCode.INVALID_REQUEST, f"There is no action {request.action}."
    reply = AlterBrokerHealthResponse(
        error_code=int(code),
        error_message=message,
        is_automatic=duties.is_automatic and allows_health(image),
        is_dry_run=duties.is_dry_run,
        fail_safe=duties.fail_safe,
        brokers=[_row(image, image.brokers[broker_id], duties) for broker_id in sorted(image.brokers)],
    )
    return Decision(reply, records)


def _changed(
    image: MetadataImage,
    action: HealthAction,
    request: AlterBrokerHealthRequest,
    policy: ControllerPolicy,
    now_ms: int,
) -> list[MetadataRecord]:
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise ProtocolError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {request.broker_id}.")
    if not allows_health(image):
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The cluster's {TIDELOG_VERSION} is below {FLEET_LEVEL}; raise it when all nodes run this version.",
        )
    cause = Cause.HEALTH_CHANGED_BY_OPERATOR
    if action is HealthAction.PROMOTE:
        if broker.is_healthy:
            return []
        return health_records(image, broker, policy, Health(cause=cause, since_ms=now_ms))
    if broker.health.state is HealthState.DEMOTED and broker.health.cause is cause:
        return []
    others = [other for other in image.brokers.values() if other.broker_id != broker.broker_id]
    aside = [other for other in others if not other.is_healthy]
    if aside and not request.force:
        held = ", ".join(f"broker {other.broker_id} ({other.health.state.name.lower()})" for other in aside)
        raise ProtocolError(
            ErrorCode.POLICY_VIOLATION, f"Put aside already: {held}. Promote it first, or force a second one."
        )
    if not any(other.is_fit for other in others):
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"Broker {broker.broker_id} is the only one that can lead.")
    health = Health(HealthState.DEMOTED, cause, now_ms, "an operator asked for it")
    return health_records(image, broker, policy, health)


def _row(image: MetadataImage, broker: BrokerImage, duties: HealthDuties) -> _Row:
    """The broker's health in the metadata, beside what the detectors say of it now."""
    reading = duties.slowness.readings.get(broker.broker_id)
    health = broker.health
    return _Row(
        broker_id=broker.broker_id,
        state=health.state.name.lower(),
        is_active=broker.is_active,
        cause="" if health.cause is Cause.UNSPECIFIED else health.cause.name.lower(),
        since_ms=health.since_ms,
        evidence=health.evidence,
        leads=len(image.topics.index.led_by(broker.broker_id)),
        score=duties.slowness.scores.get(broker.broker_id, 0),
        score_max=duties.slowness.limits.score,
        ack_delay_us=-1 if reading is None else int(reading.delay_ms * 1000),
        peers_delay_us=-1 if reading is None or reading.peers_ms < 0 else int(reading.peers_ms * 1000),
        is_silent=duties.is_silent(broker.broker_id),
    )
