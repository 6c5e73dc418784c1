"""Feature levels that the cluster has finalised. Pure."""

from __future__ import annotations

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.features import (
    ACCESS_LEVEL,
    FLEET_LEVEL,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    TELEMETRY_LEVEL,
    TIDELOG_VERSION,
)
from kraft.image.metadata import MetadataImage
from kraft.records import FeatureLevelRecord
from wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

UPDATE_COST = 5  # of one level, besides checking each broker
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def check_access_level(image: MetadataImage) -> None:
    """Raises UNSUPPORTED_VERSION while nodes may run that do not support access records (users, ACLs, tenants,
    cells)."""
    _check_level(image, ACCESS_LEVEL)


def check_fleet_level(image: MetadataImage) -> None:
    """Raises UNSUPPORTED_VERSION while nodes may run that do not support the records of `kraft.fleet_records`."""
    _check_level(image, FLEET_LEVEL)


def check_telemetry_level(image: MetadataImage) -> None:
    """Raises UNSUPPORTED_VERSION while nodes may run that do not support settings of CLIENT_METRICS."""
    _check_level(image, TELEMETRY_LEVEL)


def _check_level(image: MetadataImage, level: int) -> None:
    if image.features.get(TIDELOG_VERSION, 0) < level:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The cluster's {TIDELOG_VERSION} is below {level}; raise it when all nodes run this version.",
        )


def update_features(
    image: MetadataImage, request: UpdateFeaturesRequest
) -> Work[Decision[MetadataRecord, UpdateFeaturesResponse]]:
    """UpdateFeatures (57): all of the request's levels are finalised, or none."""
    records: list[MetadataRecord] = []
    results, failure = [], None
    for update in request.feature_updates:
        yield UPDATE_COST + len(image.brokers)
        try:
            record = _updated(image, update)
            if record is not None:
                records.append(record)
            results.append(_result(update.feature, 0, None))
        except ProtocolError as error:
            failure = failure or error
            results.append(_result(update.feature, int(error.code), error.message))
    if failure is not None:
        message = f"No feature was updated: {failure.message}"
        return Decision(UpdateFeaturesResponse(error_code=int(failure.code), error_message=message, results=results))
    reply = UpdateFeaturesResponse(error_code=0, error_message=None, results=results)
    return Decision(reply, [] if request.validate_only else records)


def _updated(image: MetadataImage, update: UpdateFeaturesRequest.FeatureUpdateKey) -> FeatureLevelRecord | None:
    name, level = update.feature, update.max_version_level
    present = image.features.get(name, 0)
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None or not (supported[0] <= level <= supported[1]):
        known = "it is not known" if supported is None else f"levels {supported[0]} to {supported[1]} are supported"
        raise ProtocolError(ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot be {level}: {known} by this controller.")
    for broker in image.brokers.values():
        low, high = broker.features.get(name, (0, 0))
        if not low <= level <= high:
            raise ProtocolError(
                ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot be {level}: broker {broker.broker_id} lacks it."
            )
    if level < present and update.upgrade_type == UPGRADE:
        raise ProtocolError(ErrorCode.INVALID_UPDATE_VERSION, f"{name} is {present}; {level} would be a downgrade.")
    if level < present and name in (METADATA_VERSION, TIDELOG_VERSION):
        raise ProtocolError(ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot be lowered.")
    return FeatureLevelRecord(name, level) if level != present else None


def _result(name: str, code: int, message: str | None) -> UpdateFeaturesResponse.UpdatableFeatureResult:
    return UpdateFeaturesResponse.UpdatableFeatureResult(feature=name, error_code=code, error_message=message)
