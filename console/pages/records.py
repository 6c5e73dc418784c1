"""Records: looked at from an offset, a time or the end, filtered, followed live; and one record written."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.responses import Response

from common.settings import INT_MAX, LONG_MAX
from console.access.trouble import Trouble
from console.formats.json_path import BadPath
from console.formats.record_decoders import (
    DECODERS,
    REGISTERED,
    WITH_REGISTRY,
    WITH_SCHEMA,
    Decoder,
    decoder_of,
    values_of,
    visible,
)
from console.formats.record_filter import Decode, Filter, Undecoded, Wanted, matcher
from console.formats.record_lines import Line, line_of
from console.queries import newest
from console.queries.newest import Coverage
from console.queries.record_scan import Found, Positions, Scan, Span, Step, at_time, span
from console.queries.record_write import Draft, write
from console.queries.topics import Led, partition_count
from console.web.page import Act, Page
from console.web.visit import Form, Visit, parse_number
from tidelog.admin.library_client import AdminClient
from tidelog.streams.avro_schemas import BadSchema, NoAnswer, SchemaOf

ROWS, ROWS_MAX = 50, 500
PARTITIONS_MAX, PARTITIONS_TEXT_MAX = 100_000, 100_000
COUNT_FRESH_S = 3.0
STARTS = {
    "end": "the newest; with a condition, all",
    "begin": "the beginning",
    "offset": "an offset",
    "time": "a time (UTC)",
}
FIELDS = ("from", "offset", "time", "partition", "key", "header", "where", "decode_key", "decode", "schema", "rows",
          "markers")  # fmt: skip


Partition = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Cursor(msgspec.Struct):
    """Where a search goes on: the next offset and the end of each partition, what was found, looked at, could not be
    decoded for the condition, and when it began."""

    at: dict[Partition, Offset]
    ends: dict[Partition, Offset]
    found: Count = 0
    looked_at: Count = 0
    undecoded: Count = 0
    began_s: float = 0.0


class Query(NamedTuple):
    """A search, from the fields of its form."""

    fields: Mapping[str, str]
    partitions: list[int] | None
    rows: int
    matches: Filter
    undecoded: Undecoded
    key: Decoder
    value: Decoder

    @property
    def is_newest(self) -> bool:
        """A search with conditions goes through all records, so it begins at the beginning."""
        return self.fields["from"] == "end" and not any(self.fields[name] for name in ("key", "header", "where"))

    def scan(self, topic: str, at: Positions, ends: Positions, most: int, led: Led | None = None) -> Scan:
        return Scan(topic, at, ends, self.matches, most, led=led, shows_markers=self.fields["markers"] == "yes")


async def show(visit: Visit) -> Response:
    """The form; the search begins once the page is there."""
    topic = visit.part("topic")
    fields = {name: visit.word(name) for name in FIELDS}
    count = await visit.ask(lambda client: partition_count(client, topic), key=("count", topic), fresh_s=COUNT_FRESH_S)
    registry = WITH_REGISTRY if visit.schemas is not None else {}
    return visit.show(
        "records.html", topic=topic, fields=fields, starts=STARTS, decoders=DECODERS | WITH_SCHEMA | registry,
        key_decoders=DECODERS | registry, count=count,
    )  # fmt: skip


async def search(visit: Visit, form: Form) -> Response:
    """The first step of a search, or the one after a cursor."""
    topic = visit.part("topic")
    query = query_of(form, _schema_of(visit))
    is_first = not form.get("cursor")
    cursor, led = await _begun(visit, topic, query) if is_first else (cursor_of(form.raw("cursor")), None)
    if query.is_newest:
        step, lines, coverage = await _newest(visit, topic, query, cursor, led)
    else:
        scan = query.scan(topic, cursor.at, cursor.ends, max(1, query.rows - cursor.found), led)
        (step, lines), coverage = await visit.ask(lambda client: _read(client, scan, query)), None
    after = Cursor(dict(step.next), cursor.ends, cursor.found + len(lines), cursor.looked_at + step.looked_at,
                   cursor.undecoded + query.undecoded.count, cursor.began_s)  # fmt: skip
    goes_on = not (step.is_at_end or query.is_newest) and after.found < query.rows
    further = msgspec.structs.replace(after, found=0, looked_at=0, undecoded=0, began_s=time.time())
    left = 0 if query.is_newest else sum(max(0, end - after.at[one]) for one, end in after.ends.items())
    return visit.show(
        "_records.html", topic=topic, lines=lines, step=step, cursor=after, goes_on=goes_on, is_first=is_first,
        cursor_text=text_of(after), further_text=text_of(further), seconds=max(0.0, time.time() - cursor.began_s),
        left=left, total=after.looked_at, why=visible(query.undecoded.why), coverage=coverage,
    )  # fmt: skip


async def tail(visit: Visit, form: Form) -> Response:
    """What has been written since the cursor, newest first."""
    topic = visit.part("topic")
    query = query_of(form, _schema_of(visit))
    now = await visit.ask(lambda client: span(client, topic, query.partitions))
    is_first = not form.get("cursor")
    if is_first:
        cursor, step, lines = Cursor(dict(now.ends), dict(now.ends)), None, list[Line]()
    else:
        cursor = cursor_of(form.raw("cursor"))
        at = {one: cursor.at.get(one, now.begins[one]) for one in now.ends}
        scan = Scan(topic, at, now.ends, query.matches, ROWS_MAX, led=now.led, step_s=0.5)
        step, lines = await visit.ask(lambda client: _read(client, scan, query))
        cursor = Cursor(
            dict(step.next), dict(now.ends), cursor.found + len(step.rows), cursor.looked_at + step.looked_at
        )
    return visit.show(
        "_tail.html", topic=topic, lines=lines[::-1], step=step, cursor=cursor, is_first=is_first,
        cursor_text=text_of(cursor),
    )  # fmt: skip


async def compose(visit: Visit) -> Response:
    topic = visit.part("topic")
    count = await visit.ask(lambda client: partition_count(client, topic), key=("count", topic), fresh_s=COUNT_FRESH_S)
    return visit.show("produce.html", topic=topic, count=count)


async def produce(visit: Visit, form: Form) -> Response:
    topic = visit.part("topic")
    draft = draft_of(form)
    written = await visit.act(lambda client: write(client, topic, draft))
    text = f"written to partition {written.partition} at offset {written.offset}"
    return visit.done(
        text, f"/topics/{topic}/records?from=offset&offset={written.offset}&partition={written.partition}"
    )


async def _begun(visit: Visit, topic: str, query: Query) -> tuple[Cursor, Led | None]:
    """Where a search begins in each partition, and who leads them. Raises Trouble."""
    places: Span = await visit.ask(lambda client: span(client, topic, query.partitions))
    way = query.fields["from"]
    at = dict(places.begins)
    if query.is_newest:
        at = newest.begin(places, query.rows)
    elif way == "offset":
        offset = parse_number("offset", query.fields["offset"], None, -LONG_MAX, LONG_MAX)
        if offset < 0:
            at = {one: max(begin, places.ends[one] + offset) for one, begin in places.begins.items()}
        else:
            at = {one: min(max(begin, offset), places.ends[one]) for one, begin in places.begins.items()}
    elif way == "time":
        moment = time_of(query.fields["time"])
        at = await visit.ask(lambda client: at_time(client, topic, places, moment))
    return Cursor(at, dict(places.ends), began_s=time.time()), places.led


async def _newest(
    visit: Visit, topic: str, query: Query, cursor: Cursor, led: Led | None
) -> tuple[Step, list[Line], Coverage]:
    """The last of the steps, with what all of them looked at, and the newest of what they found. Each step is a
    question of its own, so that others of this person come between."""
    at, lines, trouble = dict(cursor.at), list[Line](), dict[str, None]()
    unread = looked_at = found = 0
    for number in range(1, newest.STEPS_MAX + 1):
        scan = query.scan(topic, at, cursor.ends, newest.OFFSETS_MAX, led if number == 1 else None)
        step, more = await visit.ask(partial(_read_newest, scan=scan, query=query))
        lines = newest.newest([*lines, *more], query.rows)
        trouble |= dict.fromkeys(step.trouble)
        looked_at, found = looked_at + step.looked_at, found + len(step.rows)
        if step.is_at_end:
            break
        left = newest.between(step.next, cursor.ends)
        if number == newest.STEPS_MAX:
            unread += left
            break
        at = dict(step.next) if number < newest.STEPS_WHOLE else newest.nearer(step.next, cursor.ends)
        unread += left - newest.between(at, cursor.ends)
    offsets = newest.between(cursor.at, cursor.ends)
    coverage = Coverage(offsets, unread, min(found, query.rows) - len(lines))
    return step._replace(looked_at=looked_at, trouble=list(trouble)), lines, coverage


def _read(client: AdminClient, scan: Scan, query: Query) -> tuple[Step, list[Line]]:
    """A step, and what it found as lines, which are decoded in the question's thread too."""
    step = scan(client)
    return step, _lines_of(step.rows, query)


def _read_newest(client: AdminClient, scan: Scan, query: Query) -> tuple[Step, list[Line]]:
    """As `_read`, with lines of the newest alone."""
    step = scan(client)
    return step, _lines_of(newest.newest_rows(step.rows, query.rows), query)


def _lines_of(found: Sequence[Found], query: Query) -> list[Line]:
    return [
        line_of(one.partition, one.record, one.state.value, one.producer_id, query.key, query.value) for one in found
    ]


def _schema_of(visit: Visit) -> SchemaOf | None:
    return None if visit.schemas is None else visit.schemas.of_question()


def query_of(form: Form, schema_of: SchemaOf | None = None) -> Query:
    """Raises Trouble for what is no search."""
    fields = {name: form.get(name) for name in FIELDS} | {"schema": form.raw("schema")}
    if fields["from"] not in STARTS:
        fields["from"] = "end"
    if schema_of is None and REGISTERED in (fields["decode"], fields["decode_key"]):
        raise Trouble("this console knows no schema registry for you: see --schema-registry")
    wanted, undecoded = Wanted(fields["key"], fields["header"], fields["where"]), Undecoded()
    try:
        matches = matcher(wanted, _decode(fields, schema_of, undecoded))
        key = decoder_of(fields["decode_key"], "", schema_of)
        value = decoder_of(fields["decode"], fields["schema"], schema_of)
    except (BadPath, BadSchema) as error:
        raise Trouble(str(error)) from None
    rows = min(max(form.number("rows", ROWS, -LONG_MAX, LONG_MAX), 1), ROWS_MAX)
    return Query(fields, partitions_of(fields["partition"]), rows, matches, undecoded, key, value)


def _decode(fields: Mapping[str, str], schema_of: SchemaOf | None, undecoded: Undecoded) -> Decode | None:
    """What conditions look at, None for JSON. Raises BadSchema."""
    decode = values_of(fields["decode"], fields["schema"], schema_of)
    if decode is None:
        return None

    def asked(data: bytes) -> Any:
        """A search that cannot look at a value must not go on as if it did not match."""
        try:
            return decode(data)
        except NoAnswer as error:
            raise Trouble(str(error)) from None

    return undecoded.counting(asked)


def partitions_of(text: str) -> list[int] | None:
    """`0,3,5-7`; None for all. Raises Trouble, before so many numbers are made that the loop would be held."""
    found, count = set[int](), 0
    if len(text) > PARTITIONS_TEXT_MAX:
        raise Trouble("write partitions that follow each other as one range, like 5-7")
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 2 * len(str(INT_MAX)) + 1:
            raise Trouble("partitions are written like 0,3,5-7")
        low, high = int(first), int(last) if dash else int(first)
        if low > high:
            raise Trouble(f"{low}-{high}: the smaller number comes first")
        count += high - low + 1  # those named twice, too: each is work
        if high > INT_MAX or count > PARTITIONS_MAX:
            raise Trouble("so many partitions are not there")
        found.update(range(low, high + 1))
    return sorted(found) or None


def text_of(cursor: Cursor) -> str:
    return msgspec.json.encode(cursor).decode()


def cursor_of(text: str) -> Cursor:
    """Raises Trouble."""
    try:
        found = msgspec.json.decode(text, type=Cursor)
    except msgspec.DecodeError:
        found = None
    if found is None or found.at.keys() != found.ends.keys():
        raise Trouble("the search cannot go on; begin it again")
    return found


def time_of(text: str) -> int:
    """Milliseconds of ISO 8601 in UTC, or of such a number. Raises Trouble."""
    if text.isdecimal() and len(text) <= 15:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Trouble("a time is written like 2013-07-01T12:00") from None
    time_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if time_ms < 0:
        raise Trouble("a time is in 1970 or later")
    return time_ms


def draft_of(form: Form) -> Draft:
    """Raises Trouble."""
    partition = form.get("partition")
    headers = []
    for line in form.raw("headers").splitlines():
        name, colon, value = line.partition(":")
        if line.strip():
            if not colon:
                raise Trouble("headers are written NAME: VALUE, a line each")
            headers.append((name.strip(), value.strip().encode()))
    key = bytes_of(form.raw("key"), form.get("key_form"))
    return Draft(
        None if form.get("no_key") == "yes" or (not key and form.get("no_key") != "no") else key,
        None if form.get("tombstone") == "yes" else bytes_of(form.raw("value"), form.get("value_form")),
        headers,
        None if not partition else parse_number("partition", partition),
    )


def bytes_of(text: str, form: str) -> bytes:
    """Raises Trouble."""
    try:
        if form == "hex":
            return bytes.fromhex(text)
        if form == "base64":
            return base64.b64decode("".join(text.split()), validate=True)
        if form == "json":
            return msgspec.json.encode(msgspec.json.decode(text))
    except (ValueError, binascii.Error) as error:
        raise Trouble(f"this is no {form}: {error}") from None
    return text.replace("\r\n", "\n").encode()


PAGES = (Page("/topics/{topic}/records", show), Page("/topics/{topic}/produce", compose))
ACTS = (
    Act("/topics/{topic}/records", search, changes=False),
    Act("/topics/{topic}/tail", tail, changes=False),
    Act("/topics/{topic}/produce", produce),
)
