"""Metrics as clients push them: OTLP, compressed by one of Kafka's codecs.

Both steps are bounded. `inflate` refuses what inflates beyond a limit. `points` is work in slices: it reads the bytes
field by field, so no step takes longer than one data point, which has at most `POINT_FIELDS_MAX` fields. Of a push it
reads at most `FIELDS_MAX` fields and `POINTS_MAX` data points. Those of a metric that was not asked for it only counts.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.telemetry.protobuf import DamagedMessage, MessageReader, TooManyFields, fixed64_tag, tag, varint_tag
from broker.telemetry.series import LABEL_LENGTH_MAX, LABELS_MAX, NAME_LENGTH_MAX, Kind, Labels, Point
from broker.telemetry.subscriptions import Wanted
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from records.compression import Compression, DamagedData, InflatedTooLarge, decompress

POINTS_MAX = 10_000  # of one push
FIELDS_MAX = 400_000  # of one push; a client's whole MiB has less than 300,000
POINT_FIELDS_MAX = 72  # of one data point or resource with its attributes; LABELS_MAX attributes have 48
ELEMENT_COST, ATTRIBUTE_COST, POINT_COST = 1, 1, 12  # units of `common.pacing`
_FIELDS_OF_UNIT, _TEXT_BYTES_OF_UNIT = 2, 512
_BYTES_OF_CHARACTER = 4
_NAME_BYTES_MAX = _BYTES_OF_CHARACTER * NAME_LENGTH_MAX
_TEXT_BYTES_MAX = _BYTES_OF_CHARACTER * (LABEL_LENGTH_MAX + 1)  # cut there, a text is still too long for a label

# tags of OTLP's messages, by the name of the message
_DATA_RESOURCE_METRICS = tag(1)
_RESOURCE_METRICS_RESOURCE, _RESOURCE_METRICS_SCOPES = tag(1), tag(2)
_RESOURCE_ATTRIBUTE = tag(1)
_SCOPE_METRICS = tag(2)
_METRIC_NAME, _METRIC_GAUGE, _METRIC_SUM = tag(1), tag(5), tag(7)
_METRIC_DATA = frozenset({_METRIC_GAUGE, _METRIC_SUM, tag(9), tag(10), tag(11)})  # and histograms and summaries
_DATA_POINT = tag(1)  # of a gauge, a sum, a histogram and a summary
_SUM_TEMPORALITY, _SUM_IS_MONOTONIC = varint_tag(2), varint_tag(3)
_POINT_DOUBLE, _POINT_INT, _POINT_ATTRIBUTE = fixed64_tag(4), fixed64_tag(6), tag(7)
_ATTRIBUTE_KEY, _ATTRIBUTE_VALUE = tag(1), tag(2)
_VALUE_STRING, _VALUE_BOOL, _VALUE_INT, _VALUE_DOUBLE = tag(1), varint_tag(2), varint_tag(3), fixed64_tag(4)
_VALUE = frozenset(
    {_VALUE_STRING, _VALUE_BOOL, _VALUE_INT, _VALUE_DOUBLE, tag(5), tag(6), tag(7)}
)  # and not shown ones
_DELTA = 1  # AGGREGATION_TEMPORALITY_DELTA


def inflate(codec: Compression, data: bytes, bytes_max: int) -> bytes:
    """In a thread. Raises TELEMETRY_TOO_LARGE, INVALID_RECORD."""
    try:
        return decompress(codec, data, bytes_max)
    except InflatedTooLarge as error:
        raise ProtocolError(ErrorCode.TELEMETRY_TOO_LARGE, str(error)) from error
    except DamagedData as error:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"the metrics cannot be inflated: {error}") from error


def points(data: bytes, wanted: Wanted, take: Callable[[Point], None]) -> Work[int]:
    """Pass the values of gauges and sums that are wanted to `take`. Returns how many other data points there were:
    those of other metrics, histograms, those without a value or with too much, and those beyond POINTS_MAX.

    Raises TELEMETRY_TOO_LARGE, INVALID_RECORD; what stands before the cause is taken. Damage is found only in what is
    read.
    """
    push = _Push(data, wanted, take)
    try:
        yield from push.read()
    except TooManyFields as error:
        raise ProtocolError(ErrorCode.TELEMETRY_TOO_LARGE, f"more than {FIELDS_MAX} fields") from error
    except DamagedMessage as error:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"the metrics cannot be decoded: {error}") from error
    return push.others


class _Push:
    """Fields may stand in any order, and a message may come in parts, which count as one. So a message that needs one
    field for the others is looked through before they are read."""

    def __init__(self, data: bytes, wanted: Wanted, take: Callable[[Point], None]) -> None:
        self._reader = MessageReader(data, FIELDS_MAX)
        self._end = len(data)
        self._wanted = wanted
        self._take = take
        self._points_left = POINTS_MAX
        self._attributes = 0  # since the last cost
        self._text_bytes = 0  # likewise
        self.others = 0

    def read(self) -> Work[None]:
        for found, at, end in self._reader.fields(0, self._end):
            yield ELEMENT_COST
            if found == _DATA_RESOURCE_METRICS:
                yield from self._resource_metrics(at, end)

    def _resource_metrics(self, at: int, end: int) -> Work[None]:
        labels: Labels | None = ()
        for found, start, stop in self._reader.fields(at, end):
            yield ELEMENT_COST
            if found == _RESOURCE_METRICS_RESOURCE and labels is not None:
                before = self._reader.left
                labels, _ = self._labels_and_value(_RESOURCE_ATTRIBUTE, start, stop, labels)
                yield self._cost(before)
        for found, start, stop in self._reader.fields(at, end):
            yield ELEMENT_COST
            if found == _RESOURCE_METRICS_SCOPES:
                yield from self._scope_metrics(start, stop, labels)

    def _scope_metrics(self, at: int, end: int, labels: Labels | None) -> Work[None]:
        for found, start, stop in self._reader.fields(at, end):
            yield ELEMENT_COST
            if found == _SCOPE_METRICS:
                yield from self._metric(start, stop, labels)

    def _metric(self, at: int, end: int, labels: Labels | None) -> Work[None]:
        kind, since, before = 0, at, at  # of its data, that of the kind that comes last counts
        name: str | None = None
        name_at = name_end = at
        for found, start, stop in self._reader.fields(at, end):
            yield ELEMENT_COST
            if found == _METRIC_NAME:
                name_at, name_end = start, stop
            elif found in _METRIC_DATA and found != kind:
                kind, since = found, before
            before = stop
        if not kind:
            return
        if kind in (_METRIC_GAUGE, _METRIC_SUM) and labels is not None:
            name = self._name(name_at, name_end)
            yield self._wanted.cost
        meaning = Kind.GAUGE
        if kind == _METRIC_SUM and name is not None:
            meaning = yield from self._meaning(since, end)
        for found, start, stop in self._reader.fields(since, end):
            yield ELEMENT_COST
            if found == kind:
                yield from self._points(start, stop, name, labels or (), meaning)

    def _name(self, at: int, end: int) -> str | None:
        """None if it is too long, or if the metric was not asked for."""
        if end - at > _NAME_BYTES_MAX:
            return None
        name = self._reader.text(at, end, _NAME_BYTES_MAX)
        return name if self._wanted.has(name) else None

    def _meaning(self, at: int, end: int) -> Work[Kind]:
        temporality = is_monotonic = 0
        for outer, start, stop in self._reader.fields(at, end):
            yield ELEMENT_COST
            if outer == _METRIC_SUM:
                for found, value, _ in self._reader.fields(start, stop):
                    yield ELEMENT_COST
                    if found == _SUM_TEMPORALITY:
                        temporality = self._reader.int64(value)
                    elif found == _SUM_IS_MONOTONIC:
                        is_monotonic = self._reader.int64(value)
        if not is_monotonic:
            return Kind.GAUGE
        return Kind.DELTA if temporality == _DELTA else Kind.TOTAL

    def _points(self, at: int, end: int, name: str | None, labels: Labels, meaning: Kind) -> Work[None]:
        for found, start, stop in self._reader.fields(at, end):
            if found == _DATA_POINT and name is not None and self._points_left:
                self._points_left -= 1
                before = self._reader.left
                self._point(start, stop, name, labels, meaning)
                yield POINT_COST + self._cost(before)
            else:
                self.others += found == _DATA_POINT
                yield ELEMENT_COST

    def _point(self, at: int, end: int, name: str, labels: Labels, meaning: Kind) -> None:
        own, value = self._labels_and_value(_POINT_ATTRIBUTE, at, end, labels)
        if own is None or value is None:
            self.others += 1
        else:
            self._take(Point(name, own, meaning, value))

    def _labels_and_value(
        self, attribute: int, at: int, end: int, before: Labels
    ) -> tuple[Labels | None, float | None]:
        """`before` and the attributes of a data point or resource, None if there are more than a series can have; and
        the value, which only a data point has."""
        labels, value = list(before), None
        self._reader.allow(POINT_FIELDS_MAX)
        try:
            for found, start, stop in self._reader.fields(at, end):
                if found == attribute:
                    if len(labels) == LABELS_MAX:
                        return None, None
                    labels.append(self._attribute(start, stop))
                elif found == _POINT_DOUBLE:
                    value = self._reader.double(start)
                elif found == _POINT_INT:
                    value = float(self._reader.sfixed64(start))
        except TooManyFields:
            if not self._reader.left:
                raise
            return None, None
        finally:
            self._reader.allow(None)
        return tuple(labels), value

    def _attribute(self, at: int, end: int) -> tuple[str, str]:
        self._attributes += 1
        kind, key_at, key_end, value_at, value_end = 0, at, at, at, at
        for found, start, stop in self._reader.fields(at, end):
            if found == _ATTRIBUTE_KEY:
                key_at, key_end = start, stop
            elif found == _ATTRIBUTE_VALUE:
                for inner, value, after in self._reader.fields(start, stop):
                    if inner in _VALUE:
                        kind, value_at, value_end = inner, value, after
        return self._text(key_at, key_end), self._value(kind, value_at, value_end)

    def _value(self, kind: int, at: int, end: int) -> str:
        if kind == _VALUE_STRING:
            return self._text(at, end)
        if kind == _VALUE_BOOL:
            return "true" if self._reader.int64(at) else "false"
        if kind == _VALUE_INT:
            return str(self._reader.int64(at))
        return str(self._reader.double(at)) if kind == _VALUE_DOUBLE else ""

    def _text(self, at: int, end: int) -> str:
        self._text_bytes += min(end - at, _TEXT_BYTES_MAX)
        return self._reader.text(at, end, _TEXT_BYTES_MAX)

    def _cost(self, left_before: int) -> int:
        """Of what was read since so many fields were left."""
        read, decoded, attributes = left_before - self._reader.left, self._text_bytes, self._attributes
        self._text_bytes = self._attributes = 0
        return read // _FIELDS_OF_UNIT + decoded // _TEXT_BYTES_OF_UNIT + attributes * ATTRIBUTE_COST
