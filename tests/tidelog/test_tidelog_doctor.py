"""What the doctor finds in what nodes say of themselves, and what a bundle must not say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import ClusterAuthorizationFailedError
from kafka.structs import TopicPartition

from tests.architecture.test_architecture_pages import ROOT
from tidelog.admin.admin_client import Reach
from tidelog.admin.command_config import ClientSecurity
from tidelog.admin.group_lag import Behind
from tidelog.admin.transaction_doctor import Class, Examined, Place, Unanswered
from tidelog.admin.transaction_doctor import Finding as Open
from tidelog.doctor import findings
from tidelog.doctor.debug_archive import known_secrets
from tidelog.doctor.examination import Examination
from tidelog.doctor.findings import Finding, Severity
from tidelog.doctor.secret_mask import LENGTH_MIN, SecretMask, is_secret, secrets_in
from tidelog.doctor.tier_findings import of_tier
from tiering.bucket.verified import Run, TopicOutcome, Verifications
from tiering.shard.description import BrokerTier, LedStatus, StoreStatus


def severities(found: list[Finding]) -> list[Severity]:
    assert all(one.what and one.todo and one.check for one in found)
    return [one.severity for one in found]


def partition(index: int, leader: int, isr: list[int], replicas: int = 3) -> dict[str, Any]:
    return {"partition_index": index, "leader_id": leader, "isr_nodes": isr, "replica_nodes": list(range(replicas))}


def test_brokers_and_partitions() -> None:
    fenced = {"broker_id": 1, "is_fenced": True}
    assert severities(findings.of_brokers([fenced, {"broker_id": 2, "is_fenced": False}])) == [Severity.CRITICAL]
    assert findings.of_brokers([]) == []
    rows = [partition(0, 0, [0, 1, 2]), partition(1, -1, []), partition(2, 0, [0, 1]), partition(3, 0, [0])]
    topics = [{"name": "t", "partitions": rows}, {"name": "one", "partitions": [partition(0, 0, [0], 1)]}]
    asked: list[set[str]] = []
    moves = 0

    def adding() -> dict[tuple[str, int], int]:
        nonlocal moves
        moves += 1
        return {}

    def min_isr(names: set[str]) -> dict[str, int]:
        asked.append(names)
        return {"t": 2}

    found = findings.of_partitions(topics, min_isr, 3, adding)
    assert severities(found) == [Severity.CRITICAL, Severity.CRITICAL, Severity.WARNING, Severity.NOTE]
    assert [re.findall(r"t-\d", one.what) for one in found] == [["t-1"], ["t-3"], ["t-2"], []]
    assert [one.what.split(":")[0] for one in found] == [
        "1 partition has no leader", "1 partition refuses acks=all, too few replicas are in sync",
        "1 partition lacks in-sync replicas", "1 topic has one replica",
    ]  # fmt: skip
    assert (asked, moves) == ([{"t"}], 1), "settings and moves are asked for only where replicas lack"
    assert findings.of_partitions([{"name": "t", "partitions": rows[:1]}], min_isr, 3, adding) == []
    assert moves == 1


class Limited:
    """A client who may describe topics, and nothing but `allowed`."""

    def __init__(self, isr: list[int], **allowed: Any) -> None:
        self._topics = [{"name": "t", "partitions": [partition(0, 0, isr, 4)]}]
        self._allowed = allowed

    def describe_topics(self, *_: Any) -> list[dict[str, Any]]:
        return self._topics

    def describe_configs(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def __getattr__(self, name: str) -> Any:
        def ask(*_: Any, **__: Any) -> Any:
            if name not in self._allowed:
                raise ClusterAuthorizationFailedError(name)
            return self._allowed[name]

        return ask


def test_a_user_who_may_not_list_moves_is_told_of_all_that_is_out_of_sync() -> None:
    def found(client: Any) -> list[Severity]:
        where = Reach("", ClientSecurity())
        return [one.severity for one in Examination(client, where, None, 0.0).run() if one.check == "partitions"]

    moves = {TopicPartition("t", 0): {"replicas": [0, 1, 2, 3], "adding_replicas": [3], "removing_replicas": []}}
    assert found(Limited([0, 1, 2])) == [Severity.WARNING]
    assert found(Limited([0, 1, 2], list_partition_reassignments=moves)) == []
    assert found(Limited([0, 1], list_partition_reassignments=moves)) == [Severity.WARNING]


def test_each_look_that_is_refused_says_why_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Functions of commands end the process with a status, which is no reason."""
    brokers = {"brokers": [{"broker_id": 0, "host": "b", "port": 1, "is_fenced": False}]}
    client: Any = Limited([0, 1, 2, 3], describe_cluster=brokers)
    found = Examination(client, Reach("", ClientSecurity()), None, 0.0).run()
    assert {one.check for one in found} >= {"controllers", "health", "tier", "transactions", "load", "balance"}
    assert all("CLUSTER_AUTHORIZATION_FAILED" in one.what for one in found)
    assert capsys.readouterr() == ("", "")


def test_one_and_several_nodes_that_are_down() -> None:
    def what(*fenced: int) -> str:
        (found,) = findings.of_brokers([{"broker_id": one, "is_fenced": one in fenced} for one in range(3)])
        return found.what

    assert what(1) == "broker 1 of 3 does not serve: it is down, or cut off from the controllers"
    assert what(1, 2) == "brokers 1, 2 of 3 do not serve: they are down, or cut off from the controllers"
    assert of_tier([], [1])[0].what == "broker 1 does not report the tier"
    assert of_tier([], [1, 2])[0].what == "brokers 1, 2 do not report the tier"
    voters = [{"replica_id": one, "last_fetch_timestamp": 0} for one in range(3)]
    (found,) = findings.of_controllers({"leader_id": 0, "current_voters": voters}, 1_000_000)
    assert found.what == "controllers 1, 2 of 3 do not answer; 2 are needed, 1 is left"


def test_a_partition_that_gets_replicas_lacks_none_that_it_had() -> None:
    def found(isr: list[int], adding: int, least: int = 1) -> list[Severity]:
        topics = [{"name": "t", "partitions": [partition(0, 0, isr, 4)]}]
        return severities(findings.of_partitions(topics, lambda _: {"t": least}, 4, lambda: {("t", 0): adding}))

    assert found([0, 1, 2], 1) == found([0, 1, 3], 1) == found([0], 3, 2) == []
    assert found([0, 1, 2], 0) == found([0, 1], 1) == [Severity.WARNING]
    assert found([0], 2, 2) == [Severity.CRITICAL]


@pytest.mark.parametrize(
    ("heard", "worst"),
    [([0, 1_000, 2_000], None), ([0, 1_000, 9_000], Severity.CRITICAL), ([0, 9_000, -1], Severity.CRITICAL)],
)
def test_controllers(heard: list[int], worst: Severity | None) -> None:
    now = 1_000_000
    voters = [
        {"replica_id": number, "last_fetch_timestamp": -1 if age < 0 else now - age} for number, age in enumerate(heard)
    ]
    found = findings.of_controllers({"leader_id": 0, "current_voters": voters}, now)
    assert severities(found) == ([] if worst is None else [worst])
    five = voters + [{"replica_id": number, "last_fetch_timestamp": now} for number in (3, 4)]
    if worst is not None and heard[1] < 5_000:
        assert severities(findings.of_controllers({"leader_id": 0, "current_voters": five}, now)) == [Severity.WARNING]


def usage(used: int, load: float | None, throttled: dict[str, int]) -> dict[str, Any]:
    tenants = [{"tenant": "acme", "throttled_ms": throttled}]
    return {"broker": 1, "disk_used_bytes": used, "disk_size_bytes": 100, "load": load, "tenants": tenants}


def test_disks_load_and_throttling() -> None:
    assert findings.of_usage([usage(84, 0.5, {}), usage(-1, None, {})]) == []
    assert severities(findings.of_usage([usage(85, 0.95, {})])) == [Severity.WARNING] * 2
    assert severities(findings.of_usage([usage(95, None, {})])) == [Severity.CRITICAL]
    assert findings.of_throttling([usage(0, 0, {"quota": 7})], [usage(0, 0, {"quota": 7})]) == []
    (one,) = findings.of_throttling([usage(0, 0, {"quota": 7})], [usage(0, 0, {"quota": 9, "disk": 0})])
    assert "acme waits for: quota 2 ms" in one.what
    assert findings.of_fairness([{"tenant": "a", "unfair_s": 1.0}], 2.0) == []
    assert severities(findings.of_fairness([{"tenant": "a", "unfair_s": 3.0}], 2.0)) == [Severity.WARNING]


def test_health_balance_features_and_certificates() -> None:
    row = {"broker": 1, "state": "healthy", "cause": "", "silent": False}
    assert findings.of_health([row, row | {"state": "fenced"}], "") == []
    assert severities(findings.of_health([row | {"state": "demoted", "cause": "slow"}], "too many")) == [
        Severity.WARNING
    ] * 2  # fmt: skip
    assert severities(findings.of_health([row | {"silent": True}], "")) == [Severity.WARNING]
    calm: dict[str, Any] = {"uneven": [], "waits": None, "enabled": True}
    assert findings.of_balance(calm) == []
    assert len(findings.of_balance({"uneven": [{"goal": "load", "broker_id": 1}], "waits": "x", "enabled": False})) == 3
    features = {"a": {"supported": (0, 2), "finalized": (2, 2)}, "b": {"supported": (0, 0)}}
    assert findings.of_features(features) == []
    (low,) = findings.of_features(features | {"c": {"supported": (0, 1)}})
    assert "c 0 of 1" in low.what
    ages = [(31, None), (30, Severity.WARNING), (7, Severity.CRITICAL), (-1, Severity.CRITICAL)]
    for days, expected in ages:
        found = findings.of_certificates([{"where": "node.pem", "days_left": days}])
        assert severities(found) == ([] if expected is None else [expected])


def opened(kind: Class, waits: tuple[Place, ...] = ()) -> Open:
    return Open(kind, "" if kind in (Class.HANGING, Class.UNKNOWN) else "id", "", 7, 0, 1, None, (), waits, 3, 4)


def test_transactions() -> None:
    assert findings.of_transactions(Examined([opened(Class.YOUNG), opened(Class.PREPARED)])) == []
    rows = [opened(Class.HANGING), opened(Class.LATE), opened(Class.PREPARED, (Place("t", 0),))]
    found = findings.of_transactions(Examined(rows))
    assert severities(found) == [Severity.CRITICAL, Severity.WARNING, Severity.WARNING]
    assert "producer 7" in found[0].what


def test_transactions_of_coordinators_that_have_not_answered() -> None:
    lost = Unanswered("__transaction_state-7", "it has no leader")
    (found,) = findings.of_transactions(Examined([opened(Class.YOUNG)], (lost,)))
    assert found.severity is Severity.UNSEEN and "__transaction_state-7: it has no leader" in found.what
    (found,) = findings.of_transactions(Examined([opened(Class.UNKNOWN)], (lost,)))
    assert found.severity is Severity.UNSEEN and "producer 7" in found.what


def test_groups_that_nobody_reads_for_and_groups_that_fall_behind() -> None:
    def look(end: int) -> list[Behind]:
        return [Behind(group, Place("t", 0), 10, end) for group in ("idle", "slow")] + [
            Behind("done", Place("t", 0), end, end)
        ]

    states = {"idle": "Empty", "slow": "Stable", "done": "Empty"}
    assert severities(findings.of_groups(states, look(20), look(30))) == [Severity.NOTE]
    found = findings.of_groups(states, look(20), look(200))
    assert severities(found) == [Severity.NOTE, Severity.WARNING]
    assert "idle (190)" in found[0].what and "slow (+180)" in found[1].what
    assert findings.of_groups({}, [], []) == []


def led(**more: Any) -> LedStatus:
    fixed: dict[str, Any] = {
        "topic": "t",
        "topic_id": "",
        "leader_epoch": 0,
        "log_start_offset": 0,
        "local_log_start_offset": 0,
        "high_watermark": 0,
        "log_end_offset": 0,
        "claimed": True,
        "partition": 0,
    }
    return LedStatus(**(fixed | more))


@pytest.mark.parametrize(
    ("store", "partitions", "expected"),
    [
        ({"answers": True}, [led()], []),
        ({"answers": False, "since_ms": 5, "reason": "x"}, [], [Severity.CRITICAL]),
        ({"answers": True, "stale": "replaced"}, [], [Severity.CRITICAL]),
        ({"answers": True, "refused_since_ms": 5}, [], [Severity.CRITICAL]),
        ({"answers": True, "export_trouble": "x"}, [], [Severity.WARNING]),
        ({"answers": True}, [led(unreadable=1)], [Severity.CRITICAL]),
        ({"answers": True}, [led(failures=1), led(manifest_trouble="x")], [Severity.WARNING]),
        ({"answers": True}, [led(copy_lag_bytes=2**30)], [Severity.WARNING]),
    ],
)
def test_the_tier(store: dict[str, Any], partitions: list[LedStatus], expected: list[Severity]) -> None:
    report = BrokerTier(broker_id=1, cluster_id="c", store=StoreStatus(uri="u", **store), partitions=partitions)
    assert severities(of_tier([report], [])) == expected
    assert severities(of_tier([], [2])) == [Severity.UNSEEN]


def test_damage_that_a_verification_found() -> None:
    def report(problems: int, broker_id: int = 1) -> BrokerTier:
        run = Run(began_ms=1_000 + broker_id, ended_ms=61_000 + broker_id, problems=problems)
        topic = TopicOutcome(topic="flights", topic_id="07" * 16, began_ms=1, ended_ms=2, problems=problems)
        seen = Verifications(cluster_id="c", runs=(run,), topics=(topic,))
        return BrokerTier(broker_id=broker_id, cluster_id="c", verified=seen)

    assert of_tier([report(0)], []) == []
    found = of_tier([BrokerTier(broker_id=0, cluster_id="c"), report(2)], [])
    assert severities(found) == [Severity.WARNING]
    text = "the verification of everything that ended 1970-01-01T00:01:01Z found 2 problems in flights"
    assert found[0].what == text
    assert of_tier([report(2), report(0, broker_id=2)], []) == [], "what was read last counts"


def test_what_is_said_of_many_things_is_bounded() -> None:
    assert findings.named(range(3)) == "0, 1, 2"
    assert findings.named(range(1_000)) == "0, 1, 2, 3, 4 and 995 more"


def test_docs_list_every_look() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    source = (ROOT / "tidelog" / "doctor" / "examination.py").read_text()
    looks = re.findall(r'^ {12}"(\w+)": ', source, re.M)
    assert len(looks) > 8
    assert [look for look in looks if f"| {look} |" not in page] == []


# secrets -----------------------------------------------------------------------------------------------------

secret_text = st.text(st.characters(min_codepoint=33, max_codepoint=0x17F), min_size=LENGTH_MIN, max_size=40).filter(
    lambda text: text == text.strip() and "*" not in text
)


@given(secret_text, st.text(max_size=50), st.text(max_size=50))
def test_a_known_secret_is_nowhere(secret: str, before: str, after: str) -> None:
    mask = SecretMask([secret])
    for text in (before + secret + after, json.dumps({"a": before + secret + after}), repr(before + secret + after)):
        assert secret not in mask.applied(text)


LOOKS_LIKE = [
    'sasl.jaas.config=org.x.PlainLoginModule required username="u" password="SECRET";',
    '"ssl.key.password": "SECRET",',
    "password=SECRET",
    "token: SECRET",
    "Authorization: Bearer SECRET",
    "s3://user:SECRET@host/bucket",
    "aws_secret_access_key=SECRET",
    "{'secret': 'SECRET'}",
    "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\nSECRET",
]


@pytest.mark.parametrize("text", LOOKS_LIKE)
def test_what_looks_like_a_secret_is_masked_too(text: str) -> None:
    assert "s3cr3t-value" not in SecretMask([]).applied(text.replace("SECRET", "s3cr3t-value"))


def test_what_is_no_secret_stays() -> None:
    mask = SecretMask(["abc"])
    for text in (
        "tidelog.cluster.secret.file=/etc/secret",
        "leader_epoch=7 topic=tokens",
        "http://127.0.0.1:9092/metrics",
        "abc",  # too short to be one
    ):
        assert mask.applied(text) == text
    assert not is_secret("tidelog.cluster.secret.file") and not is_secret("topic")
    assert is_secret("ssl.key.password") and is_secret("listener.name.x.ssl.keystore.key") and is_secret("key.secret")


def test_secrets_of_files_settings_and_variables(tmp_path: Path) -> None:
    files = {
        "cluster.secret": "cluster-secret-value\n",
        "demo.key": "key=TLKEY\nsecret=key-secret-value\ntenant_id=x\n",
        "demo.java.properties": 'sasl.jaas.config=x required username="u" password="jaas-value";\n',
        "node.pem": "-----BEGIN PRIVATE KEY-----\nMIIprivateline\n-----END PRIVATE KEY-----\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    settings = {"ssl.key.password": "setting-value", "log.dirs": "/data"}
    variables = {"TIDELOG_SSL_KEY_PASSWORD": "variable-value", "AWS_SESSION_TOKEN": "aws-value", "HOME": "/root"}
    paths = [*(tmp_path / name for name in files), tmp_path / "absent.key"]
    found = set(known_secrets(paths, settings, variables))
    wanted = {"cluster-secret-value", "key-secret-value", "jaas-value", "MIIprivateline", "setting-value",
              "variable-value", "aws-value"}  # fmt: skip
    assert wanted <= found
    assert not {"/data", "/root", "x"} & found
    assert list(secrets_in("a=b\n# password\n")) == []
