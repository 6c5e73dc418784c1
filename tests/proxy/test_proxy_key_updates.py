"""A client may change its keys as often as it likes, and hold nobody up with it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from proxy.server_tls import Places, ServerContext, ServerTls
from tests.proxy.proxy_world import HOST, Authority

KEY_UPDATE, HANDSHAKE, DATA = b"\x18\x00\x00\x01\x00", 22, 23
UPDATES = 300


def expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """RFC 8446, 7.1: HKDF-Expand-Label of TLS_AES_256_GCM_SHA384, without a context."""
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    return HKDFExpand(hashes.SHA384(), size, info).derive(secret)


def updates_and(data: bytes, secret: bytes, count: int) -> Iterator[bytes]:
    """Records of RFC 8446, 5.2: each but the last one tells of new keys (4.6.3), under which the next one is."""
    for number in range(count + 1):
        content, kind = (KEY_UPDATE, HANDSHAKE) if number < count else (data, DATA)
        inner = content + bytes([kind])
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = expanded(secret, b"iv", 12)  # the first record of its keys: number 0
        yield head + AESGCM(expanded(secret, b"key", 32)).encrypt(nonce, inner, head)
        secret = expanded(secret, b"traffic upd", 48)


def test_one_call_takes_one_key_update_and_what_follows_them_arrives(
    certificate: ServerContext, authority: Authority, tmp_path: Path
) -> None:
    context = authority.client_context()
    context.keylog_filename = str(tmp_path / "keys")
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        ours.setblocking(False)
        theirs.setblocking(False)
        server = certificate.accept(ours, Places(1))
        assert isinstance(server, ServerTls)
        client = context.wrap_socket(theirs, server_hostname=HOST, do_handshake_on_connect=False)
        left = [server.do_handshake, client.do_handshake]
        while left:
            for step in list(left):
                try:
                    step()
                    left.remove(step)
                except ssl.SSLWantReadError:
                    pass
        assert client.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
        lines = Path(context.keylog_filename).read_text().splitlines()
        (secret,) = [bytes.fromhex(line.split()[2]) for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0")]
        with closing(socket.socket(fileno=client.detach())) as bare:
            bare.sendall(b"".join(updates_and(b"hello", secret, UPDATES)))
            room = memoryview(bytearray(16 * 1024))
            for _ in range(UPDATES):
                with pytest.raises(ssl.SSLWantReadError):
                    server.read(len(room), room)
            assert bytes(room[: server.read(len(room), room)]) == b"hello"
