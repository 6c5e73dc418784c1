"""Avro by the id of its schema: every value and no other, whatever a registry or a producer sends."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tidelog.command_line import application
from tidelog.streams.avro_text import HEADER, AvroText, Undecoded, parse
from tidelog.streams.record_formats import BadFormat, Incoming, shape_of
from tidelog.streams.schema_registry import (
    MISSED_AGAIN_S,
    Answer,
    NoSchema,
    RegistryFailure,
    Schema,
    SchemaRegistry,
    basic_login,
    http_ask,
)

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delays", "type": {"type": "array", "items": ["null", "double"]}},
        {"name": "by", "type": {"type": "map", "values": "long"}},
        {"name": "tail", "type": ["null", "bytes"]},
    ],
}
FLIGHTS = st.fixed_dictionaries(
    {
        "carrier": st.text(max_size=5),
        "delays": st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "by": st.dictionaries(st.text(max_size=3), st.integers(-(1 << 63), (1 << 63) - 1), max_size=2),
        "tail": st.none() | st.binary(max_size=5),
    }
)


def written(value: Any, schema: Any, number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return HEADER.pack(0, number) + out.getvalue()


def of(schema: Any) -> AvroText:
    return AvroText(lambda number: Schema(number, json.dumps(schema)))


@given(FLIGHTS, st.integers(0, (1 << 32) - 1))
def test_a_value_becomes_json(flight: dict[str, Any], number: int) -> None:
    decode = of(FLIGHT)
    found = json.loads(decode(written(flight, FLIGHT, number)))
    tail = flight["tail"]
    assert found == flight | {"tail": None if tail is None else base64.b64encode(tail).decode()}
    assert decode.undecoded == 0


@given(FLIGHTS, st.data())
def test_what_is_cut_off_or_has_more_is_said_and_kept(flight: dict[str, Any], data: st.DataObject) -> None:
    whole = written(flight, FLIGHT, 7)
    kept = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:kept], whole + b"\0"):
        decode = of(FLIGHT)
        found = json.loads(decode(damaged))
        assert found.keys() == {"undecoded", "base64"} and base64.b64decode(found["base64"]) == damaged
        assert decode.undecoded == 1


@given(st.binary(max_size=40))
def test_any_bytes_are_a_line(data: bytes) -> None:
    json.loads(of(FLIGHT)(HEADER.pack(0, 1) + data))
    json.loads(of(FLIGHT)(data))


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "E", "fields": []},
        {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]},
    ],
)
def test_few_bytes_make_no_endless_list(items: Any) -> None:
    nested = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": ["null", {"type": "array", "items": items}]}],
    }
    for schema in ({"type": "array", "items": items}, nested):
        with pytest.raises(Undecoded, match="take no bytes"):
            parse(Schema(1, json.dumps(schema)))


@pytest.mark.parametrize(
    "text", ["", "{", '"Flight"', "[]]", '{"type": "record"}', "[" * 5_000, "7", '{"type": "enum"}']
)
def test_what_is_no_schema_is_said(text: str) -> None:
    with pytest.raises(Undecoded, match="schema 3 is no Avro schema"):
        parse(Schema(3, text))


@pytest.mark.parametrize("levels", [100, 300, 600, 900, 960, 990])
def test_no_depth_of_a_schema_ends_the_command(levels: int) -> None:
    schema = '{"type":"array","items":' * levels + '"int"' + "}" * levels
    decode = AvroText(lambda number: Schema(number, schema))
    line = decode(HEADER.pack(0, 1) + b"\2" * levels + b"\0" * (levels + 1))
    assert line.startswith(b'{"undecoded":' if decode.undecoded else b"[[")


def test_few_bytes_make_no_flood_of_values() -> None:
    inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "n", "type": "null"}]}
    for at in range(1, 12):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{at - 1}"}]
        inner = {"type": "record", "name": f"R{at}", "fields": fields}
    assert b"too many values without bytes" in of(inner)(HEADER.pack(0, 1))


def test_a_schema_is_not_taken_as_parsed_before() -> None:
    marked = {"type": "record", "name": "E", "fields": [], "__fastavro_parsed": True}
    assert b"no key in a schema begins with __" in of(marked)(HEADER.pack(0, 1))


class Registry:
    """Answers by path, and counts."""

    def __init__(self, rows: dict[str, Any]) -> None:
        self.rows = rows
        self.asked: list[str] = []

    def __call__(self, path: str) -> Answer:
        self.asked.append(path)
        row = self.rows.get(path.partition("?")[0])
        return Answer(404, b"{}") if row is None else Answer(200, json.dumps(row).encode())


def test_a_schema_is_asked_for_once_and_a_missing_one_seldom() -> None:
    rows, now = Registry({"/schemas/ids/1": {"schema": '"string"'}}), [0.0]
    registry = SchemaRegistry(rows, lambda: now[0])
    for _ in range(3):
        assert registry.schema(1).text == '"string"'
        with pytest.raises(NoSchema, match="no schemas/ids/2"):
            registry.schema(2)
    assert rows.asked == ["/schemas/ids/1", "/schemas/ids/2"]
    now[0] += MISSED_AGAIN_S
    rows.rows["/schemas/ids/2"] = {"schema": '"int"'}
    assert registry.schema(2).text == '"int"'


def test_references_are_followed_and_come_first() -> None:
    outer = {"type": "record", "name": "O", "fields": [{"name": "i", "type": "I"}]}
    inner = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "long"}]}
    reference = {"name": "I", "subject": "in/ner", "version": 2}
    rows = Registry(
        {
            "/schemas/ids/5": {"schema": json.dumps(outer), "references": [reference]},
            "/subjects/in%2Fner/versions/2": {"id": 4, "schema": json.dumps(inner)},
        }
    )
    decode = AvroText(SchemaRegistry(rows).schema)
    assert decode(HEADER.pack(0, 5) + b"\x0e") == b'{"i":{"n":7}}'


def test_schemas_that_refer_to_each_other_end() -> None:
    reference = {"name": "I", "subject": "s", "version": 1}
    row = {"id": 1, "schema": '"int"', "references": [reference]}
    with pytest.raises(NoSchema, match="too many"):
        SchemaRegistry(Registry({"/schemas/ids/1": row, "/subjects/s/versions/1": row})).schema(1)


def test_all_versions_of_a_subject_the_newest_last() -> None:
    rows = Registry(
        {
            "/subjects/t-value/versions": [2, 1],
            "/subjects/t-value/versions/1": {"id": 9, "schema": '"int"'},
            "/subjects/t-value/versions/2": {"id": 3, "schema": '"long"'},
        }
    )
    assert [one.number for one in SchemaRegistry(rows).versions("t-value")] == [9, 3]
    with pytest.raises(NoSchema):
        SchemaRegistry(rows).versions("other")


@pytest.mark.parametrize(
    "row",
    [
        [],
        {},
        {"schema": 7},
        "text",
        None,
        *({"schema": '"int"', "references": one} for one in ([{"subject": "s"}], "s", ["s"], {"subject": "s"}, 7)),
    ],
)
def test_a_registry_that_talks_nonsense_is_a_failure(row: Any) -> None:
    with pytest.raises((RegistryFailure, NoSchema)):
        SchemaRegistry(Registry({"/schemas/ids/1": row})).schema(1)


@pytest.mark.parametrize("referenced", [[], "text", 7, {}, {"schema": None}])
def test_nonsense_behind_a_reference_is_a_failure(referenced: Any) -> None:
    row = {"schema": '"int"', "references": [{"subject": "s", "version": 1}]}
    with pytest.raises(RegistryFailure):
        SchemaRegistry(Registry({"/schemas/ids/1": row, "/subjects/s/versions/1": referenced})).schema(1)


def test_other_kinds_of_schemas_are_said_in_place() -> None:
    rows = Registry({"/schemas/ids/1": {"schema": "message M {}", "schemaType": "PROTOBUF"}})
    assert b"is PROTOBUF, not Avro" in AvroText(SchemaRegistry(rows).schema)(HEADER.pack(0, 1))


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                return
            is_known = self.headers.get("Authorization") == "Basic YTpi"
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(b"content")

        def log_message(self, format: str, *args: Any) -> None:
            """Tests print nothing."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}/"
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_login_goes_to_the_registry_and_to_no_other_server(server: str) -> None:
    assert http_ask(server, basic_login("a:b"))("/x") == Answer(200, b"content")
    assert http_ask(server, {})("/x").status == 401
    assert http_ask(server, basic_login("a:b"))("/moved").status == 302


def test_a_registry_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(RegistryFailure, match="does not answer"):
        http_ask("http://127.0.0.1:1", {})("/x")


def test_what_does_not_speak_http_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(b"220 mail.example.org\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RegistryFailure, match="does not answer"):
            http_ask(f"http://127.0.0.1:{server.getsockname()[1]}", {})("/x")
        thread.join()


def test_formats_show_what_was_decoded() -> None:
    decode = of("long")
    record = Incoming("t", 0, 1, 0, None, HEADER.pack(0, 1) + b"\x0e")
    assert shape_of("text", terminal=False, value=decode)(record) == b"7\n"
    assert json.loads(shape_of("json", terminal=False, value=decode)(record))["value"] == 7
    assert shape_of("{key}|{value}", terminal=False, key=decode, value=decode)(record) == b"|7\n"
    assert shape_of("json", terminal=False, value=decode)(record._replace(value=None)).count(b'"value":null')
    with pytest.raises(BadFormat):
        shape_of("hex", terminal=False, value=decode)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--value-decoder", "avro"], "needs --schema-registry"),
        (["--value-decoder", "json"], "no decoder"),
        (["--key-decoder", "avro", "--schema-registry", "http://ada:secret@host"], "--schema-registry-config"),
        (["--key-decoder", "avro", "--schema-registry", "registry:8081"], "http://"),
        (["--key-decoder", "avro", "--schema-registry", "http://[::1:8081"], "--schema-registry: its host"),
        (["--key-decoder", "avro", "--schema-registry-config", "CONFIG"], "schema.registry.url is missing"),
        (["--value-decoder", "avro", "--schema-registry", "http://host", "--format", "hex"], "decodes nothing"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    config = tmp_path / "registry.properties"
    config.write_text("basic.auth.user.info=a:b\n")
    given = [str(config) if word == "CONFIG" else word for word in words]
    done = CliRunner().invoke(application("consume"), ["consume", "t", *given])
    assert done.exit_code == 2 and said in done.output and "secret" not in done.output.replace("basic", "")


@pytest.mark.parametrize("line", ["ssl.truststore.type=JKS", "basic.auth.credentials.source=URL"])
def test_settings_of_clients_that_are_not_served_are_refused(tmp_path: Path, line: str) -> None:
    config = tmp_path / "registry.properties"
    config.write_text(f"schema.registry.url=http://127.0.0.1:1\n{line}\n")
    words = ["consume", "t", "--value-decoder", "avro", "--schema-registry-config", str(config)]
    done = CliRunner().invoke(application("consume"), words)
    assert done.exit_code == 2 and "it must be" in done.output
