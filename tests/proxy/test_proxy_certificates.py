"""Certificates: files that fit and that do not, changes while running, the time of their end."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import x25519

from proxy.certificates import (
    DAY_S,
    CertificateProblem,
    ChainFiles,
    ExpiryWatch,
    ReloadedContext,
    broker_context,
    ends_at,
    server_context,
)
from proxy.server_tls import ServerContext
from tests.proxy.proxy_world import Authority


def test_key_and_certificate_may_lie_in_two_files(authority: Authority, tmp_path: Path) -> None:
    both = authority.write(tmp_path / "both.pem", ("a.b",)).read_text()
    at = both.index("-----BEGIN CERT")
    (tmp_path / "key.pem").write_text(both[:at])
    (tmp_path / "chain.pem").write_text(both[at:])
    server_context(ChainFiles(str(tmp_path / "chain.pem"), str(tmp_path / "key.pem")))


@pytest.mark.parametrize("damage", ["missing", "empty", "no key", "another key", "a key that cannot sign"])
def test_files_that_do_not_fit_are_named(authority: Authority, tmp_path: Path, damage: str) -> None:
    path = authority.write(tmp_path / "both.pem", ("a.b",))
    text = path.read_text()
    other = authority.write(tmp_path / "other.pem", ("a.b",)).read_text()
    at = text.index("-----BEGIN CERT")
    if damage == "missing":
        path.unlink()
    else:
        exchange = x25519.X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        keys = {"another key": other[: other.index("-----BEGIN CERT")], "a key that cannot sign": exchange.decode()}
        path.write_text("" if damage == "empty" else keys.get(damage, "") + text[at:])
    with pytest.raises(CertificateProblem, match=r"both\.pem"):
        server_context(ChainFiles(str(path)))
    if damage in {"missing", "empty"}:
        with pytest.raises(CertificateProblem, match=r"both\.pem"):
            ends_at(ChainFiles(str(path)))


def test_no_key_appears_in_a_problems_text(authority: Authority, tmp_path: Path) -> None:
    path = authority.write(tmp_path / "both.pem", ("a.b",))
    text = path.read_text()
    path.write_text(text[: text.index("-----BEGIN CERT")])
    with pytest.raises(CertificateProblem) as told:
        server_context(ChainFiles(str(path)))
    secret = "".join(text.splitlines()[1:4])
    assert not any(secret[at : at + 12] in str(told.value) for at in range(0, 100, 12))


def test_the_brokers_authority_has_to_be_there(authority: Authority, tmp_path: Path) -> None:
    own = ChainFiles(str(authority.write(tmp_path / "proxy.pem", ("p",))))
    (tmp_path / "ca.pem").write_text(authority.pem())
    context = broker_context(own, str(tmp_path / "ca.pem"))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    with pytest.raises(CertificateProblem, match=r"nowhere\.pem"):
        broker_context(own, str(tmp_path / "nowhere.pem"))


def test_a_changed_file_makes_a_new_context_and_a_bad_one_leaves_the_old(authority: Authority, tmp_path: Path) -> None:
    path = authority.write(tmp_path / "both.pem", ("a.b",))
    files, seen = ChainFiles(str(path)), list[ServerContext]()
    followed = ReloadedContext(lambda: server_context(files), files, seen.append, time.time)
    first = followed.context
    followed.look()
    assert seen == []
    path.write_text("nonsense")
    followed.look()
    followed.look()
    assert followed.context is first
    assert followed.failures == 1
    authority.write(path, ("a.b",))
    followed.look()
    assert seen == [followed.context]
    assert followed.context is not first
    followed.look(anyway=True)
    assert len(seen) == 2


def test_a_certificate_that_has_ended_leaves_the_old(authority: Authority, tmp_path: Path) -> None:
    path = authority.write(tmp_path / "both.pem", ("a.b",), 90)
    files, now_s = ChainFiles(str(path)), time.time()
    followed = ReloadedContext(lambda: server_context(files), files, lambda _: None, lambda: now_s)
    first = followed.context
    authority.write(path, ("a.b",), 30)
    now_s += 31 * DAY_S
    followed.look()
    assert followed.context is first and followed.failures == 1
    authority.write(path, ("a.b",), 60)
    followed.look()
    assert followed.context is not first


def test_an_end_is_watched_while_new_files_cannot_be_read(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = authority.write(tmp_path / "both.pem", ("a.b",), 30)
    watch, end = ExpiryWatch(ChainFiles(str(path)), 14), ends_at(ChainFiles(str(path)))
    watch.look(end - 20 * DAY_S)
    path.write_text("nonsense")
    for hour in range(48):
        watch.look(end - 10 * DAY_S + 1 + hour * 3_600)
    told = [record.message for record in caplog.records]
    assert sum("is not known" in line for line in told) == 1
    assert sum("ends soon" in line for line in told) == 2


def test_the_end_is_told_once_a_day_before_and_at_the_time(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ChainFiles(str(authority.write(tmp_path / "both.pem", ("a.b",), 30)))
    watch, end = ExpiryWatch(files, 14), ends_at(files)
    assert abs(end - time.time() - 30 * DAY_S) < 60
    with caplog.at_level(logging.WARNING):
        for hour in range(16 * 24):
            watch.look(end - 30 * DAY_S + hour * 3_600)
        assert not caplog.records
        for hour in range(14 * 24):
            watch.look(end - 14 * DAY_S + 1 + hour * 3_600)
        assert len(caplog.records) == 14
        assert all(record.levelno == logging.WARNING for record in caplog.records)
        caplog.clear()
        for hour in range(48):
            watch.look(end + 1 + hour * 3_600)
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        caplog.clear()
        authority.write(tmp_path / "both.pem", ("a.b",), 90)
        watch.look(end + 2)
        assert not caplog.records
    assert watch.ends_s > end
