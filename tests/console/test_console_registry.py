"""Avro by the ids of a schema registry: what is shown, and what a slow, silent or hostile registry costs."""

from __future__ import annotations

import contextlib
import html
import io
import json
import threading
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.__main__ import Given, schemas_of
from console.formats.record_decoders import decoder_of
from console.queries.registry_schemas import AGAIN_S, FETCHES_AT_ONCE_MAX, KEPT_BYTES_MAX, KEPT_MAX, RegistrySchemas
from records.builder import build_batch
from records.record import Record
from tests.console.fake_cluster import FakeClient, fetched, log_in, metadata, offsets, token_of, visitor
from tidelog.streams.avro_schemas import BadSchema, NoAnswer, Unfitting, parse_schema, registered_value
from tidelog.streams.schema_registry import NoSchema, RegistryFailure
from tidelog.streams.schema_registry import Schema as Registered

FLIGHT: Any = {"type": "record", "name": "Flight", "namespace": "air", "fields": [
    {"name": "carrier", "type": "string"}, {"name": "delay", "type": "long"}]}  # fmt: skip
ABSENT, NONE, SILENT = 404, 500, 503


def written(value: Any, number: int, schema: Any = FLIGHT) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4) + out.getvalue()


class FakeRegistry:
    """Has FLIGHT under each id but those below."""

    def __init__(self, texts: Callable[[int], str] = lambda number: json.dumps(FLIGHT)) -> None:
        self._texts = texts
        self.asked: list[int] = []

    def __call__(self, number: int) -> Registered:
        self.asked.append(number)
        if number == ABSENT:
            raise NoSchema(f"the schema registry has no schemas/ids/{number}")
        if number == SILENT:
            raise RegistryFailure("the schema registry http://r does not answer: timed out")
        return Registered(number, "{" if number == NONE else self._texts(number))


def searched(values: list[bytes], fetch: FakeRegistry, **fields: str) -> str:
    """What a search shows of these values, without its markup."""
    batch = bytes(build_batch([Record(at, 5, value, value) for at, value in enumerate(values)]))
    answers = {"MetadataRequest": metadata("t"), "ListOffsetsRequest": offsets(0, len(values)),
               "FetchRequest": fetched([batch], stable=len(values))}  # fmt: skip
    with visitor(FakeClient(answers), schemas=RegistrySchemas(fetch)) as browser:
        log_in(browser)
        given = {"csrf": token_of(browser), "from": "begin", "decode": "registered"} | fields
        return html.unescape(browser.post("/topics/t/records", data=given, headers={"hx-request": "true"}).text)


def test_keys_and_values_are_shown_by_the_schemas_of_their_ids() -> None:
    fetch = FakeRegistry()
    rows = [written({"carrier": "UA", "delay": 7}, 1), written({"carrier": "AA", "delay": 9}, 2)] * 3
    shown = searched(rows, fetch, decode_key="registered")
    assert shown.count('"carrier": "UA"') == 3 * 3, "as a key, as a value, and in the value's short line"
    assert sorted(fetch.asked) == [1, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (written({"carrier": "UA", "delay": 7}, ABSENT), "the schema registry has no schemas/ids/404"),
        (written({"carrier": "UA", "delay": 7}, NONE), "schema 500: this is no schema of Avro"),
        (written({"carrier": "UA", "delay": 7}, SILENT), "does not answer: timed out"),
        (written({"carrier": "UA", "delay": 7}, 1) + b"x", "it does not fit schema 1"),
        (written({"carrier": "UA", "delay": 7}, 1)[:-3], "it does not fit schema 1"),
        (b"plain text", "it does not begin with a zero byte and the id of a schema"),
        (b"\0\0", "it does not begin with a zero byte and the id of a schema"),
        (b"\0" * 70_000, "what has more than 64 KiB is not decoded"),
    ],
)
def test_what_cannot_be_decoded_is_said_in_its_place(value: bytes, said: str) -> None:
    shown = searched([value, written({"carrier": "DL", "delay": 1}, 2)], FakeRegistry())
    assert said in shown
    assert value[:20].hex(" ", 4) in shown
    assert ('"carrier": "DL"' in shown) is (int.from_bytes(value[1:5]) != SILENT), "a silent one is asked again later"


def test_a_condition_looks_at_what_is_decoded_and_counts_the_rest() -> None:
    rows = [written({"carrier": "UA", "delay": 70}, 1), written({"carrier": "AA", "delay": 70}, 1), b"?", b"!",
            written({"carrier": "UA", "delay": 1}, ABSENT)]  # fmt: skip
    shown = searched(rows, FakeRegistry(), where='$.carrier == "UA" && $.delay > 60')
    assert "5 records looked at" in shown
    assert "1 found" in shown
    assert "3 values could not be decoded, so the condition did not look at them: it does not begin" in shown


def test_a_search_with_a_condition_ends_when_the_registry_does_not_answer() -> None:
    shown = searched([written({"carrier": "UA", "delay": 7}, SILENT)], FakeRegistry(), where="$.delay > 60")
    assert "does not answer: timed out" in shown
    assert "looked at" not in shown


def test_only_a_console_with_a_registry_offers_it_and_no_tenant_gets_its_schemas() -> None:
    answers = {"MetadataRequest": metadata("t"), "ListOffsetsRequest": offsets(0, 1)}
    fetch = FakeRegistry()
    for schemas, fields, offers in (
        (None, {}, False),
        (RegistrySchemas(fetch), {}, True),
        (RegistrySchemas(fetch), {"tenant": "lkc-a1", "way": "SCRAM-SHA-256"}, False),
    ):
        with visitor(FakeClient(answers), schemas=schemas, tenants="cloud.example:10092") as browser:
            log_in(browser, **fields)
            assert ("Avro by its id" in browser.get("/topics/t/records").text) is offers
            given = {"csrf": token_of(browser), "decode": "registered"}
            assert ("--schema-registry" in browser.post("/topics/t/records", data=given).text) is not offers
    assert fetch.asked == []


def test_each_schema_is_fetched_once_and_a_missing_one_again_after_a_while() -> None:
    now, fetch = [0.0], FakeRegistry()
    schemas = RegistrySchemas(fetch, lambda: now[0])
    for number in (1, ABSENT, SILENT) * 3:
        with contextlib.suppress(Unfitting, NoAnswer):
            schemas.of_question()(number)
    assert fetch.asked == [1, ABSENT, SILENT]
    with pytest.raises(NoAnswer):
        schemas.of_question()(2)
    now[0] += AGAIN_S
    schemas.of_question()(2)
    with pytest.raises(Unfitting):
        schemas.of_question()(ABSENT)
    schemas.of_question()(1)
    assert fetch.asked == [1, ABSENT, SILENT, 2, ABSENT]


def test_a_registry_that_hangs_costs_a_question_its_patience_and_the_console_a_few_threads() -> None:
    ends, now = threading.Event(), [0.0]

    def hanging(number: int) -> Registered:
        assert ends.wait(60)
        return Registered(number, json.dumps(FLIGHT))

    schemas = RegistrySchemas(hanging, lambda: now[0])
    question = schemas.of_question(0.0)
    try:
        for number in range(FETCHES_AT_ONCE_MAX):
            with pytest.raises(NoAnswer, match="in time"):
                question(number)
        with pytest.raises(NoAnswer, match="others"):
            question(FETCHES_AT_ONCE_MAX)
        waiting = [schemas.asked(number) for number in range(FETCHES_AT_ONCE_MAX)]
    finally:
        ends.set()
    for one in waiting:
        assert one.result(60).parsed["name"] == "air.Flight"  # type: ignore[union-attr]
    assert question(0).parsed["name"] == "air.Flight"


NUMBERS = st.integers(1, 3 * KEPT_MAX).filter(lambda number: number not in (ABSENT, NONE, SILENT))


@given(st.lists(NUMBERS, max_size=8), st.integers(0, 100_000))
def test_what_is_kept_is_bounded(more: list[int], doc_bytes: int) -> None:
    schemas = RegistrySchemas(FakeRegistry(lambda number: json.dumps(FLIGHT | {"doc": "x" * doc_bytes})))
    numbers = [*range(12), *more]
    for number in numbers:
        schemas.of_question()(number)
    kept, size = schemas.kept
    assert kept <= KEPT_MAX
    assert size <= KEPT_BYTES_MAX
    assert kept >= min(len(set(numbers)), KEPT_BYTES_MAX // (doc_bytes + 400))


REFERRING: Any = {"type": "record", "name": "Trip", "namespace": "air", "fields": [
    {"name": "legs", "type": {"type": "array", "items": "Flight"}}, {"name": "first", "type": "Flight"}]}  # fmt: skip


@pytest.mark.parametrize("shape", [REFERRING, ["null", REFERRING], {"type": "map", "values": REFERRING}])
def test_schemas_that_refer_to_others_decode(shape: Any) -> None:
    flight = {"carrier": "UA", "delay": 7}
    trip: Any = {"legs": [flight, flight], "first": flight}
    value = {"a": trip} if isinstance(shape, dict) and shape.get("type") == "map" else trip
    named: dict[str, Any] = {}
    fastavro.parse_schema(FLIGHT, named)
    whole = fastavro.parse_schema(
        {"type": "record", "name": "W", "fields": [{"name": "v", "type": shape}]}, named_schemas=named
    )
    out = io.BytesIO()
    fastavro.schemaless_writer(out, whole, {"v": value})
    schema = parse_schema(json.dumps(shape), [json.dumps(FLIGHT)])
    assert registered_value(lambda _: schema, b"\0\0\0\0\1" + out.getvalue()) == value


def test_no_reference_gets_past_what_guards_a_schema() -> None:
    empty = json.dumps({"type": "record", "name": "E", "fields": []})
    with pytest.raises(BadSchema, match="no bytes"):
        parse_schema(json.dumps({"type": "array", "items": "E"}), [empty])
    with pytest.raises(BadSchema, match="no key"):
        parse_schema('"E"', ['{"type": "record", "name": "E", "fields": [], "__fastavro_parsed": true}'])
    with pytest.raises(BadSchema, match="at most"):
        parse_schema('"E"', [empty + " " * (200 << 10), " " * (100 << 10)])
    deep = json.dumps({"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]})
    schema = parse_schema('"L"', [deep])
    assert schema.is_recursive
    with pytest.raises(Unfitting):
        registered_value(lambda _: schema, b"\0\0\0\0\1" + b"\2" * 200_000 + b"\0")


@given(st.binary(max_size=60), st.booleans())
def test_every_decoder_by_ids_shows_every_bytes(data: bytes, has_head: bool) -> None:
    def schema_of(number: int) -> Any:
        if number % 3 == 0:
            raise Unfitting("\x1b[31mno\u202e")
        return parse_schema(json.dumps(FLIGHT))

    shown = decoder_of("registered", "", schema_of)(b"\0" + data if has_head else data)
    assert all(one.isprintable() or one in "\n\t" for one in shown)


def test_the_console_gets_the_place_of_a_login_not_the_login(tmp_path: Any) -> None:
    given = Given("b:9092", {}, "", "127.0.0.1", 1)
    assert schemas_of(given) is None
    config = tmp_path / "registry"
    config.write_text("schema.registry.url=http://127.0.0.1:1\nbasic.auth.user.info=ann:secret\n")
    schemas = schemas_of(Given("b:9092", {}, "", "127.0.0.1", 1, schema_registry_config=str(config)))
    assert schemas is not None
    with pytest.raises(NoAnswer, match="does not answer") as said:
        schemas.of_question()(1)
    assert "secret" not in str(said.value)
