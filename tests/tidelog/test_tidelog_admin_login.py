"""Administration commands that log in, on a cluster where ACLs hold: over each protocol, and refused with a reason."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from tests.tidelog.test_tidelog_tier_rebuild import tidelog, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

CHIEF, CLERK, PASSWORD = "chief", "clerk", "a password, of 30=characters"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """The listener PLAINTEXT wants SASL, the listener SSL takes certificates, and who has ours may do everything."""
    settings = {
        "log.dir.free.bytes.min": "0",
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "authorizer.class.name": AUTHORIZER,
        "super.users": f"User:owner;User:{CHIEF}",
        "ssl.principal.mapping.rules": "RULE:^CN=client,.*$/owner/",
        "ssl.client.auth": "required",
    }
    data = tmp_path_factory.mktemp("login") / "data"
    with EmbeddedCluster(1, settings, data, 1, tls=True) as running:
        for user in (CHIEF, CLERK):
            write_password(data.parent / user, PASSWORD)
            words = ("users", "set", user, "--password-file", str(data.parent / user))
            assert run(running, properties(running, "owner"), *words) == ""
        yield running


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """The listener SSL wants SASL inside TLS."""
    settings = {
        "log.dir.free.bytes.min": "0",
        "tidelog.tier.export.interval.ms": "1000",
        "listener.security.protocol.map": "SSL:SASL_SSL",
        "authorizer.class.name": AUTHORIZER,
        "super.users": f"User:ANONYMOUS;User:{CHIEF}",
        "ssl.client.auth": "none",
    }
    data = tmp_path_factory.mktemp("secure") / "data"
    with EmbeddedCluster(1, settings, data, 1, tls=True) as running:
        for user in (CHIEF, CLERK):
            write_password(data.parent / user, PASSWORD)
            running.command_of("users", "set", user, "--password-file", str(data.parent / user))
        yield running


def write_password(path: Path, password: str) -> None:
    path.write_text(password + "\n")


def properties(
    cluster: EmbeddedCluster, user: str, mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD, **other: str
) -> Path:
    """`owner` shows the certificate; others log in, by TLS where the cluster's listener for that has SASL."""
    tls, secure = cluster.data / "tls", "SSL:SASL_SSL" in cluster.settings["listener.security.protocol.map"]
    trust = {"ssl.truststore.location": str(tls / "ca.pem"), "ssl.truststore.type": "PEM"}
    if user == "owner":
        values = {"security.protocol": "SSL", "ssl.keystore.location": str(tls / "client.pem")} | trust
    else:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        values = {
            "security.protocol": "SASL_SSL" if secure else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'org.apache.kafka.common.security.{module} required username="{user}" '
            f'password="{password}";',
        } | (trust if secure else {})
    values |= {name.replace("__", "."): value for name, value in other.items()}
    path = cluster.data.parent / f"{len(list(cluster.data.parent.iterdir()))}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items() if value))
    path.chmod(0o600)
    return path


def run(cluster: EmbeddedCluster, config: Path | None, *words: str, bootstrap: str | None = None) -> str:
    """Standard error of a command; its output must not be asked for by what it says of secrets."""
    where = ["--bootstrap", bootstrap] if bootstrap is not None else ["--data", str(cluster.data)]
    done = tidelog(*words, *where, *(["--command-config", str(config)] if config is not None else []))
    assert PASSWORD not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_user_administers_by_each_mechanism(request: pytest.FixtureRequest, protocol: str, mechanism: str) -> None:
    cluster = request.getfixturevalue("secure" if protocol == "SASL_SSL" else "cluster")
    config, topic = properties(cluster, CHIEF, mechanism), f"by-{mechanism.lower()}"
    assert run(cluster, config, "topics", "create", topic) == ""
    assert run(cluster, config, "topics", "describe", topic) == ""
    refusal = run(cluster, properties(cluster, CLERK, mechanism), "topics", "create", f"{topic}-2")
    assert "AUTHORIZATION_FAILED" in refusal
    assert run(cluster, config, "topics", "delete", topic) == ""


def test_every_group_of_commands_logs_in(secure: EmbeddedCluster) -> None:
    config = properties(secure, CHIEF)
    for words in (
        ("topics", "list"), ("groups", "list"), ("tenants", "list"), ("cells", "list"), ("brokers", "list"),
        ("users", "list"), ("acls", "list"), ("tier", "status"), ("audit", "--live"),
    ):  # fmt: skip
        assert run(secure, config, *words) == "", words
    assert run(secure, config, "tenants", "create", "demo") == ""
    assert run(secure, config, "keys", "create", "demo", "--out", str(secure.data.parent / "demo.key")) == ""
    assert run(secure, config, "keys", "list", "demo") == ""


def test_the_audit_names_who_logged_in(secure: EmbeddedCluster) -> None:
    config, topic = properties(secure, CHIEF), "audited"
    assert run(secure, config, "topics", "create", topic) == ""
    words = ("audit", "--json", "--topic", topic, "--kind", "topic_created")

    def told() -> str:
        done = tidelog(*words, "--data", str(secure.data), "--command-config", str(config))
        return done.stdout if done.returncode == 0 else ""  # a topic of which nothing is told yet is unknown to it

    events = [json.loads(line) for line in wait_for(told).splitlines()]
    assert {event["actor"] for event in events} == {f"User:{CHIEF}@127.0.0.1"}


def test_a_wrong_login_is_told_in_its_own_words(secure: EmbeddedCluster, cluster: EmbeddedCluster) -> None:
    for mechanism in MECHANISMS:
        for user, password in ((CHIEF, "wrong"), ("nobody", PASSWORD)):
            told = run(secure, properties(secure, user, mechanism, password), "topics", "list")
            assert f"cannot log in as {user} with {mechanism}: Authentication failed" in told, told
    port = secure.bootstrap.rpartition(":")[2]
    ports = {row["listeners"]["SSL"] for row in secure.nodes() if row["role"] == "broker"}
    (tls,) = ports
    for config, bootstrap, reason in (
        (properties(secure, CHIEF, ssl__truststore__location=""), None, "certificate is not trusted"),
        (properties(secure, CHIEF), f"127.0.0.2:{tls.rpartition(':')[2]}", "no broker answers"),
        (properties(secure, CHIEF), f"localhost:{port}", "without TLS"),
        (properties(secure, CHIEF, security__protocol="SASL_PLAINTEXT"), tls, "ended the login"),
        (properties(secure, CHIEF, security__protocol="SSL"), tls, "may want another security.protocol than SSL"),
        (properties(secure, CHIEF, security__protocol="PLAINTEXT"), tls, "ended the connection"),
        (properties(secure, CHIEF, security__protocol="SASL_PLAINTEXT"), secure.bootstrap, "may be one without SASL"),
        (None, tls, "see --command-config"),
        (properties(cluster, "owner", ssl__keystore__location=""), cluster.secure_bootstrap, "ssl.keystore.location"),
        (properties(secure, CHIEF), "localhost", "is not HOST:PORT"),
        (secure.data / "none", None, "No such file"),
    ):
        told = run(secure, config, "topics", "list", bootstrap=bootstrap)
        assert reason in told and len(told.splitlines()) == 1, (reason, told)


def test_a_mechanism_that_is_not_offered(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("eyJ.eyJ.sig")
    other = {"sasl__jaas__config": "", "sasl__oauthbearer__token__endpoint__url": token.as_uri()}
    told = run(cluster, properties(cluster, CHIEF, "OAUTHBEARER", **other), "topics", "list")
    assert "does not offer OAUTHBEARER" in told and "SCRAM-SHA-512" in told and "eyJ" not in told


def test_a_server_that_only_poses_as_one_learns_and_says_nothing(tmp_path: Path) -> None:
    """It lets everybody in without the signature that proves that it knows the user: nothing is asked of it then."""
    from wire.codec import decode_request, encode_response  # noqa: PLC0415
    from wire.messages import Message, SaslAuthenticateResponse, SaslHandshakeResponse  # noqa: PLC0415

    listener = socket.create_server(("127.0.0.1", 0))
    seen = list[int]()

    def pose() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            while size := stream.read(4):
                header, request = decode_request(memoryview(stream.read(int.from_bytes(size))))
                seen.append(header.api_key)
                answer: Message
                if header.api_key == 17:
                    answer = SaslHandshakeResponse(error_code=0, mechanisms=["SCRAM-SHA-256"])
                else:
                    nonce = bytes(request.auth_bytes).rpartition(b"r=")[2]
                    first = b"r=" + nonce + b"more,s=c2FsdHNhbHQ=,i=4096"
                    words = first if seen.count(36) == 1 else b"v=" + bytes(43).replace(b"\0", b"A") + b"="
                    answer = SaslAuthenticateResponse(
                        error_code=0, error_message=None, auth_bytes=words, session_lifetime_ms=0
                    )
                connection.sendall(encode_response(header.api_key, header.version, header.correlation, answer))

    thread = threading.Thread(target=pose, daemon=True)
    thread.start()
    config = tmp_path / "c.properties"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=ada\nsasl.password={PASSWORD}\n"
    )
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    done = tidelog("topics", "list", "--bootstrap", address, "--command-config", str(config))
    listener.close()
    assert done.returncode == 1 and "its signature is wrong" in done.stderr
    thread.join(10)
    assert seen == [17, 36, 36]
