"""TLS on listeners: bytes whole both ways, who the peer is, what is refused, certificates that change and end."""

from __future__ import annotations

import asyncio
import datetime
import errno
import logging
import os
import random
import shutil
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.machine import MachineClock, machine_ports
from common.settings import SettingError
from tests.proxy.proxy_world import Authority
from tests.wire.fakes import until
from tests.wire.tls_world import (
    LOCAL_HOSTS,
    STALLS,
    Material,
    TlsClient,
    client_context,
    echoing,
    make_material,
    tls_listener,
)
from tidelog.cluster.certificates import NODE, authority, certificate
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol
from wire.server import ServerLimits
from wire.tls import DAY_MS, SecuredNetwork, TlsConfig, TlsContexts, openssl_name

CLOCK = MachineClock()


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(tmp_path_factory.mktemp("tls"))


def contexts(material: Material, **changes: Any) -> TlsContexts:
    return TlsContexts(material.config(**changes), CLOCK)


@dataclass
class Region:
    file: Any
    position: int
    length: int


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_frames_and_files_are_whole_at_any_size(
    material: Material, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    blob = random.Random(7).randbytes(900_000)
    (tmp_path / "segment").write_bytes(blob)
    file = machine_ports(tmp_path).disk.open("segment")
    async with echoing(tmp_path, tls_listener(contexts(material)), region=Region(file, 3, len(blob) - 3)) as server:
        context = client_context(material, minimum_version=version, maximum_version=version)
        client = await TlsClient.connect(server.address, context)
        sizes = [1, 16_380, 16_384, 16_385, 65_536, 262_140, 262_144, 300_001, 5_000_000]
        for size in [*sizes, *(random.Random(size).randrange(1, 400_000) for size in range(20))]:
            payload = random.Random(size).randbytes(size)
            assert await client.call(payload) == payload + blob[3:]
        client.close()
        await until(lambda: server.closed)
        assert server.pool.held == server.pool.unsent == 0
        assert not server.violations
    file.close()


async def test_many_requests_in_one_burst_are_all_answered_in_order(material: Material, tmp_path: Path) -> None:
    """What OpenSSL has decrypted already is announced by no readiness: none of it may be left lying."""
    async with echoing(tmp_path, tls_listener(contexts(material))) as server:
        client = await TlsClient.connect(server.address, client_context(material))
        draw = random.Random(3)
        sent = [draw.randbytes(draw.choice((1, 90, 16_384, 20_000, 70_000))) for _ in range(300)]

        async def ask() -> None:
            for payload in sent:
                client.writer.write(len(payload).to_bytes(4, "big") + payload)
                await client.writer.drain()

        asking = asyncio.create_task(ask())
        for payload in sent:
            async with asyncio.timeout(10):
                assert await client.answer() == payload
        await asking
        client.close()


async def test_a_connection_that_was_muted_goes_on_with_what_was_decrypted(material: Material, tmp_path: Path) -> None:
    async with echoing(tmp_path, tls_listener(contexts(material))) as server:
        client = await TlsClient.connect(server.address, client_context(material))
        await client.call(b"first")
        connection = server.opened[0]
        connection.mute()
        for number in range(50):
            client.writer.write((10_000).to_bytes(4, "big") + bytes([number]) * 10_000)
        await client.writer.drain()
        await asyncio.sleep(0)
        connection.unmute()
        for number in range(50):
            async with asyncio.timeout(5):
                assert await client.answer() == bytes([number]) * 10_000
        client.close()


async def test_a_reader_that_stalls_is_closed_and_one_that_is_slow_gets_all(material: Material, tmp_path: Path) -> None:
    limits = ServerLimits(connection=STALLS)
    async with echoing(tmp_path, tls_listener(contexts(material)), limits=limits) as server:
        slow = await TlsClient.connect(server.address, client_context(material))
        payload = random.Random(1).randbytes(30_000_000)
        slow.writer.write(len(payload).to_bytes(4, "big") + payload)
        assert await slow.answer() == payload
        slow.close()
        loop = asyncio.get_running_loop()
        server.times = 70  # more than kernels take, and not copied in one callback
        stalled = await loop.run_in_executor(None, _stall, server.address, client_context(material))
        await until(lambda: len(server.closed) == 2)
        stalled.close()
        assert server.pool.unsent == 0


def _stall(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    raw = socket.create_connection(address)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    secured = context.wrap_socket(raw, server_hostname="localhost")
    secured.sendall((1_000_000).to_bytes(4, "big") + b"x" * 1_000_000)
    return secured


async def test_the_peer_is_known_before_the_first_frame(material: Material, tmp_path: Path) -> None:
    rules = r"RULE:^CN=(\w+) .*$/$1/L,DEFAULT"
    mutual = contexts(material, client_auth="required", principal_mapping_rules=rules)
    async with echoing(tmp_path, tls_listener(mutual)) as server:
        client = await TlsClient.connect(server.address, client_context(material, material.client), "LocalHost")
        assert await client.call(b"hello") == b"hello"
        identity = server.opened[0].identity
        assert identity is not None
        assert identity.tls_principal == "User:ada"
        assert identity.server_name == "localhost"
        assert identity.security_protocol is SecurityProtocol.SSL
        assert identity.client_address == client.writer.get_extra_info("sockname")
        assert (identity.tls_version, identity.tls_cipher) == ("TLSv1.3", "TLS_AES_256_GCM_SHA384")
        client.close()


@pytest.mark.parametrize(
    ("client_auth", "identity", "principal"),
    [
        ("none", "client", None),
        ("requested", None, None),
        ("requested", "client", "User:CN=Ada Example,OU=client,O=Tidelog"),
        ("required", "client", "User:CN=Ada Example,OU=client,O=Tidelog"),
    ],
)
async def test_client_auth_decides_who_is_asked(
    material: Material, tmp_path: Path, client_auth: str, identity: str | None, principal: str | None
) -> None:
    async with echoing(tmp_path, tls_listener(contexts(material, client_auth=client_auth))) as server:
        own = material.client if identity else None
        client = await TlsClient.connect(server.address, client_context(material, own))
        await client.call(b"x")
        found = server.opened[0].identity
        assert found is not None
        assert found.tls_principal == principal
        client.close()


async def test_who_shows_no_good_certificate_is_told_so_and_counted(material: Material, tmp_path: Path) -> None:
    async with echoing(tmp_path, tls_listener(contexts(material, client_auth="required"))) as server:
        for own, alert in ((None, "CERTIFICATE_REQUIRED"), (material.stranger, "UNKNOWN_CA")):
            with pytest.raises(ssl.SSLError) as refused:
                await _ask(server.address, client_context(material, own))
            assert alert in str(refused.value).upper().replace(" ", "_")
        assert server.failures == {"TLS handshake failed": 2}
        assert not server.opened


async def _ask(address: tuple[str, int], context: ssl.SSLContext) -> None:
    client = await TlsClient.connect(address, context)
    await client.call(b"x")


async def test_plain_bytes_on_a_tls_listener_are_refused(
    material: Material, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with echoing(tmp_path, tls_listener(contexts(material))) as server:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"\0\0\0\x14\0\x12\0\3\0\0\0\0\0\0")
            await reader.read()
            writer.close()
        assert server.failures == {"TLS handshake failed": 5}
        said = [record for record in caplog.records if record.message == "connection refused"]
        assert len(said) == 1  # once per cause and address


async def test_changed_certificates_are_the_next_handshakes(
    material: Material, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keystore = tmp_path / "node.pem"
    shutil.copy(material.node, keystore)
    tls = contexts(material, keystore_location=str(keystore))
    limits = ServerLimits(certificates_interval_s=0.02)

    async def shown(address: tuple[str, int]) -> bytes:
        client = await TlsClient.connect(address, client_context(material))
        secured = client.writer.get_extra_info("ssl_object")
        client.close()
        return bytes(secured.getpeercert(binary_form=True))

    async with echoing(tmp_path, tls_listener(tls), limits=limits) as server:
        first = await shown(server.address)
        keystore.write_text("not a certificate")
        await until(lambda: "changed certificates are not used" in caplog.messages)
        assert await shown(server.address) == first
        fresh = certificate(tmp_path / "fresh", "node.pem", material.authority, NODE, "node-0", LOCAL_HOSTS)
        fresh.replace(keystore)
        await until(lambda: tls.reloads == 1)
        assert await shown(server.address) != first


async def test_a_change_that_could_not_be_read_is_tried_again_and_said_once(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keystore = tmp_path / "node.pem"
    shutil.copy(material.node, keystore)
    tls = contexts(material, keystore_location=str(keystore))
    certificate(tmp_path, "fresh.pem", material.authority, NODE, "node-0", LOCAL_HOSTS).replace(keystore)
    with monkeypatch.context() as patched:
        patched.setattr("common.certificate_files.os.memfd_create", _no_more_files)
        for _ in range(3):
            await tls.refresh()
    assert tls.reloads == 0
    assert caplog.messages.count("changed certificates are not used") == 1
    await tls.refresh()
    assert tls.reloads == 1


async def test_a_certificate_that_has_expired_takes_no_valid_ones_place(material: Material, tmp_path: Path) -> None:
    class Later(MachineClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + 31 * DAY_MS

    issuer = Authority.make()
    keystore = issuer.write(tmp_path / "node.pem", ("node-0",), 60)
    tls = TlsContexts(material.config(keystore_location=str(keystore)), Later())
    issuer.write(keystore, ("node-0",), 30)
    await tls.refresh()
    assert tls.reloads == 0
    issuer.write(keystore, ("node-0",), 90)
    await tls.refresh()
    assert tls.reloads == 1


def _no_more_files(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(("days_left", "level"), [(40, None), (5, logging.WARNING), (-1, logging.ERROR)])
def test_the_log_says_when_a_certificate_ends(
    material: Material, days_left: int, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    expires_ms = contexts(material).expires_ms or 0

    class Then:
        def monotonic(self) -> float:
            return time.monotonic()

        def wall_ms(self) -> int:
            return expires_ms - days_left * DAY_MS

    caplog.clear()
    TlsContexts(material.config(), Then())
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])


async def test_the_end_itself_is_said_although_it_was_foretold(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    expires_ms = contexts(material).expires_ms or 0

    class Running(MachineClock):
        now_ms = expires_ms - 60_000

        def wall_ms(self) -> int:
            return self.now_ms

    clock = Running()
    caplog.clear()
    tls = TlsContexts(material.config(), clock)
    await tls.refresh()
    clock.now_ms = expires_ms + 1
    await tls.refresh()
    await tls.refresh()
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keystore_location": "/nowhere.pem"}, "ssl.keystore.location: /nowhere.pem: No such file"),
        ({"truststore_location": "/dev/null"}, "ssl.truststore.location: /dev/null: no PEM text"),
        ({"truststore_location": "", "client_auth": "required"}, "ssl.client.auth: required is not valid without"),
        ({"cipher_suites": ("TLS_AES_128_GCM_SHA256",)}, "ssl.cipher.suites: of TLS 1.3 name all or none"),
        ({"cipher_suites": ("NONSENSE",)}, "ssl.cipher.suites: none of NONSENSE is known"),
        ({"principal_mapping_rules": "RULE:x"}, "ssl.principal.mapping.rules"),
    ],
)
def test_what_does_not_load_is_one_sentence(material: Material, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words.replace(".", r"\.")) as refused:
        contexts(material, **changes)
    assert "\n" not in str(refused.value)


def test_key_and_chain_may_stand_in_the_settings(material: Material) -> None:
    text = material.node.read_text()
    key, _, chain = text.partition("-----END PRIVATE KEY-----\n")
    config = TlsConfig(keystore_certificate_chain=chain, keystore_key=key + "-----END PRIVATE KEY-----\n")
    assert TlsContexts(config, CLOCK).expires_ms == contexts(material).expires_ms
    assert "PRIVATE" not in repr(config)
    with pytest.raises(SettingError, match=r"ssl\.keystore\.key"):
        TlsContexts(TlsConfig(keystore_certificate_chain=chain), CLOCK)


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", "AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
    ],
)
def test_suites_have_the_protocols_names_or_openssls(suite: str, name: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert openssl_name(suite) == name
    context.set_ciphers(name)
    assert openssl_name(name) == name


async def test_a_suite_of_tls_1_2_alone_leaves_no_1_3(material: Material, tmp_path: Path) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    async with echoing(tmp_path, tls_listener(contexts(material, cipher_suites=(suite,)))) as server:
        client = await TlsClient.connect(server.address, client_context(material))
        await client.call(b"x")
        identity = server.opened[0].identity
        assert identity is not None
        assert (identity.tls_version, identity.tls_cipher) == ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")
        client.close()


async def test_nodes_links_are_mutual_and_check_the_name(material: Material, tmp_path: Path) -> None:
    ports = machine_ports(tmp_path)
    internal = tls_listener(contexts(material, client_auth="required"), kind=ListenerKind.INTERNAL)
    async with echoing(tmp_path, internal, secret=b"s" * 32) as server:
        good = await SecuredNetwork(ports.network, contexts(material)).connect(server.address)
        await until(lambda: len(server.server.connections) == 1)
        good.close()
        elsewhere = certificate(tmp_path, "node.pem", material.authority, NODE, "node-1", ["elsewhere"])
        other = tls_listener(contexts(material, keystore_location=str(elsewhere)))
        async with echoing(tmp_path, other) as wrong:
            with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
                await SecuredNetwork(ports.network, contexts(material)).connect(wrong.address)
        fake = authority(tmp_path / "fake")
        theirs = certificate(tmp_path / "fake", "node.pem", fake, NODE, "node-0", LOCAL_HOSTS)
        intruder = SecuredNetwork(ports.network, contexts(material, keystore_location=str(theirs)))
        await intruder.connect(server.address)  # over TLS 1.3 the client is done before it is refused
        await until(lambda: server.failures.get("TLS handshake failed", 0) == 1)


async def test_plain_listeners_beside_know_their_peers_too(material: Material, tmp_path: Path) -> None:
    plain = ListenerConfig("PLAINTEXT", ("127.0.0.1", 0), None, ListenerKind.OPERATOR)
    async with echoing(tmp_path, plain, tls_listener(contexts(material))) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"\0\0\0\2hi")
        assert await reader.readexactly(6) == b"\0\0\0\2hi"
        identity = server.opened[0].identity
        assert identity is not None
        assert identity.security_protocol is SecurityProtocol.PLAINTEXT
        assert identity.client_address == writer.get_extra_info("sockname")
        assert identity.tls_principal is None
        writer.close()


def test_certificates_that_hold_are_left_alone(tmp_path: Path) -> None:
    own = authority(tmp_path)
    made = certificate(tmp_path, "node.pem", own, NODE, "node-0", LOCAL_HOSTS)
    before = made.read_bytes()
    assert certificate(tmp_path, "node.pem", authority(tmp_path), NODE, "node-0", LOCAL_HOSTS).read_bytes() == before
    certificate(tmp_path, "node.pem", own, NODE, "node-0", [*LOCAL_HOSTS, "more"])
    assert made.read_bytes() != before
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    (tmp_path / "ca.pem").unlink()
    (tmp_path / "ca.key").unlink()
    again = authority(tmp_path)
    assert certificate(tmp_path, "node.pem", again, NODE, "node-0", LOCAL_HOSTS).read_bytes() != before
    assert again.certificate.not_valid_before_utc < datetime.datetime.now(datetime.UTC)
