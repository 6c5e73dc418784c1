"""What people do on the first day, as they would: by labels and buttons, without knowing the addresses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.console_program import ConsoleProgram, enter, log_in
from bench.embedded import EmbeddedCluster
from tests.console_browser.conftest import tenant_id
from tidelog.cluster.client_files import key_file, read_key

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def produce(cluster: EmbeddedCluster, topic: str, rows: list[tuple[str, bytes | None]], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap} | settings)
    for key, value in rows:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def done(page: Any, what: str = "") -> str:
    """What the page says was done, once it says this."""
    notice = page.locator(".notice").filter(has_text=what).first
    notice.wait_for()
    return str(notice.inner_text())


def test_a_topic_from_its_making_to_its_end(page: Any, console: ConsoleProgram) -> None:
    page.get_by_role("link", name="Topics").click()
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name", exact=False).first.fill("no such name!")
    page.get_by_role("button", name="Create").click()
    assert "INVALID_TOPIC" in page.wait_for_selector(".outcome .trouble").inner_text()
    page.get_by_label("Name", exact=False).first.fill("orders")
    page.get_by_label("Partitions").fill("2")
    page.get_by_role("button", name="Create").click()
    done(page, "2 partitions")

    page.get_by_label("How many it shall have").fill("5")
    page.get_by_role("button", name="See what changes").click()
    page.get_by_role("button", name="Give it 5 partitions").click()
    done(page, "5 partitions")

    page.get_by_role("link", name="Settings").last.click()
    page.get_by_role("link", name="retention.ms", exact=True).click()
    page.get_by_label("New value").fill("much")
    page.get_by_role("button", name="See what changes").click()
    assert "must be" in page.wait_for_selector(".outcome .trouble").inner_text()
    page.get_by_label("New value").fill("3600000")
    page.get_by_role("button", name="See what changes").click()
    assert "topic orders alone" in page.wait_for_selector(".outcome .finding").inner_text()
    page.get_by_role("button", name="Change it").click()
    done(page, "is 3600000")

    page.goto(console.address + "/topics/orders")
    page.get_by_role("link", name="Delete").click()
    assert "cannot be brought back" in page.locator("main").inner_text()
    page.get_by_label("Write the topic's name").fill("orders")
    page.get_by_role("button", name="Delete the topic").click()
    done(page, "topic orders was deleted")


def test_records_are_found_followed_and_written(page: Any, console: ConsoleProgram, cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", "looked-at", "--partitions", "2")
    rows = [
        (f"k{n}", json.dumps({"n": n, "legs": [{"to": "JFK" if n == 1234 else "LAX"}]}).encode()) for n in range(2_000)
    ]
    produce(cluster, "looked-at", [*rows, ("hostile", HOSTILE.encode()), ("gone", None)])
    page.goto(console.address + "/topics/looked-at/records")
    page.wait_for_selector("tr.end")
    assert page.locator("tbody tr").count() >= 50
    page.get_by_label("Where the value has").fill('$.legs[*].to == "JFK"')
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector("tr.end")
    assert "2 002 records looked at" in page.locator("tr.end").inner_text().replace("\u202f", " ")
    assert page.locator("tbody details").count() == 1
    assert '"n": 1234' in page.locator("tbody details").inner_text()

    page.goto(console.address + "/topics/looked-at/records?key=hostile")
    page.wait_for_selector("tr.end")
    page.locator("tbody details summary").click()
    assert HOSTILE in page.locator("tbody pre").inner_text()
    page.goto(console.address + "/topics/looked-at/records?key=gone")
    page.wait_for_selector("tr.end")
    assert "tombstone" in page.locator("tbody").inner_text()

    page.goto(console.address + "/topics/looked-at/records")
    page.wait_for_selector("tr.end")
    page.get_by_role("button", name="Follow live").click()
    page.wait_for_selector("#tail-state")
    produce(cluster, "looked-at", [("late", b"just now")])
    page.wait_for_selector("#tail tbody tr")
    assert "just now" in page.locator("#tail").inner_text()
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("text=Stopped.")

    page.get_by_role("link", name="Produce a record").click()
    page.get_by_label("Value", exact=False).first.fill('{"by": "hand"}')
    page.get_by_label("Headers").fill("from: me")
    page.get_by_role("button", name="Produce").click()
    done(page, "written to partition")
    page.wait_for_selector("tbody details")
    assert '"by": "hand"' in page.locator("tbody").inner_text()


def wait_for_markers(cluster: EmbeddedCluster, transactional_id: str) -> None:
    """A decided transaction is answered before its markers are written."""
    for _ in range(20):
        if "Complete" in cluster.command_of("transactions", "describe", transactional_id):
            return
    raise AssertionError(f"the markers of {transactional_id} are not written")


def test_transactions_are_marked(page: Any, console: ConsoleProgram, cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", "marked", "--partitions", "1")
    for name, is_kept in (("kept", True), ("taken-back", False)):
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("marked", name)
        producer.flush(30)
        producer.commit_transaction(30) if is_kept else producer.abort_transaction(30)
        wait_for_markers(cluster, name)
    page.goto(console.address + "/topics/marked/records?from=begin&markers=yes")
    page.wait_for_selector("tr.end")
    lines = page.locator("tbody tr").all_inner_texts()
    assert "committed" in lines[0]
    assert "end of a transaction: commit" in lines[1]
    assert "aborted" in lines[2]
    assert "end of a transaction: abort" in lines[3]
    page.get_by_role("link", name="Transactions").click()
    page.get_by_role("link", name="taken-back").click()
    assert "CompleteAbort" in page.locator("main").inner_text()


def test_a_group_is_moved_back(page: Any, console: ConsoleProgram, cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", "read", "--partitions", "1")
    produce(cluster, "read", [("k", b"v")] * 20)
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["read"])
    assert len(consumer.consume(20, 30)) == 20
    consumer.commit(asynchronous=False)
    page.get_by_role("link", name="Groups").click()
    page.get_by_role("link", name="readers").click()
    assert "read: 0" in page.locator("main").inner_text()
    page.get_by_role("button", name="See what it reads again").click()
    assert "stop its members" in page.wait_for_selector(".outcome .trouble").inner_text()
    consumer.close()
    page.locator("select[name=to]").select_option("shift")
    page.get_by_label("Time, length of time, or offset").fill("-5")
    page.get_by_role("button", name="See what it reads again").click()
    page.wait_for_selector(".outcome table")
    assert "reads 5 offsets again and skips 0" in page.locator(".outcome").first.inner_text()
    page.get_by_role("button", name="Move the offsets").click()
    done(page, "reads 5 offsets again")
    assert "15" in page.locator("#group table").last.inner_text()


def test_a_deleted_topic_comes_back(page: Any, console: ConsoleProgram, cluster: EmbeddedCluster) -> None:
    options = ["--config", "remote.storage.enable=true", "--config", "segment.bytes=1048576"]
    cluster.command_of("topics", "create", "kept", "--partitions", "1", *options)
    produce(cluster, "kept", [("k", bytes(1000))] * 5_000, **{"batch.size": 100_000})
    page.goto(console.address + "/tier?q=kept")
    page.wait_for_function(
        "() => document.querySelector('#tier tbody td:nth-child(4)')?.textContent > 2", timeout=60_000
    )
    page.goto(console.address + "/topics/kept/delete")
    assert "can be brought back for 1 d" in page.locator("main").inner_text()
    page.get_by_label("Write the topic's name").fill("kept")
    page.get_by_role("button", name="Delete the topic").click()
    done(page, "topic kept was deleted")
    for _ in range(60):
        page.goto(console.address + "/tier")
        if page.get_by_role("button", name="Restore it").count():
            break
        page.wait_for_timeout(1_000)  # the deletion reaches the tier's shards
    page.get_by_role("button", name="Restore it").click()
    page.wait_for_url("**/topics/kept-restored", timeout=120_000)
    done(page, "kept is back as kept-restored")
    page.get_by_role("link", name="Audit").last.click()
    page.wait_for_selector("#main table", timeout=60_000)


def test_an_acl_comes_and_goes(page: Any) -> None:
    page.get_by_role("link", name="ACLs").click()
    form = page.get_by_role("region", name="Create an ACL")
    form.get_by_label("Principal").fill("User:reader")
    form.locator("input[name=name]").fill("looked-at")
    form.get_by_role("button", name="See what changes").click()
    assert "User:reader: allow read on topic looked-at" in page.wait_for_selector(".outcome .finding").inner_text()
    page.get_by_role("button", name="Create the ACL").click()
    done(page, "the ACL was created")
    page.get_by_label("Choose allow read for User:reader").check()
    page.get_by_role("button", name="See what deleting changes").click()
    assert "1 ACLs go" in page.wait_for_selector(".outcome .finding").inner_text()
    page.get_by_role("button", name="Delete 1 ACLs").click()
    done(page, "1 ACLs were deleted")


def test_a_tenant_is_made_and_moved(page: Any, console: ConsoleProgram) -> None:
    page.get_by_role("link", name="Tenants").click()
    page.get_by_label("Name", exact=False).first.fill("traveller")
    page.get_by_role("button", name="Create").click()
    done(page, "was created")
    page.get_by_role("button", name="Create a key").click()
    assert "Copy the secret now" in page.wait_for_selector(".outcome .finding").inner_text()
    before = page.locator("dl.facts").first.inner_text()
    page.get_by_role("button", name="Move it").click()
    done(page, "moves to cell")
    page.wait_for_function("before => document.querySelector('dl.facts').innerText != before", arg=before)
    page.get_by_role("link", name="Cells").click()
    assert page.locator("tbody tr").count() == 2


def balance(page: Any) -> None:
    """A plan is made and begins; then its history is shown."""
    page.get_by_role("link", name="Balance").click()
    page.get_by_role("button", name="Plan").click()
    page.wait_for_selector(".outcome table")
    page.get_by_role("button", name="Begin").click()
    done(page, "has begun")
    page.get_by_role("link", name="History and reasons").click()


def test_the_balancer_says_what_it_would_do(page: Any) -> None:
    balance(page)
    assert page.get_by_role("region", name="Operations").locator("tbody tr").count() >= 1


def test_the_balancer_says_why_it_has_moved_a_partition(
    page: Any, console: ConsoleProgram, cluster: EmbeddedCluster
) -> None:
    """All partitions of a topic lie on one broker, which the balancer levels once it is asked to."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("heaped", 24, replica_assignment=[[0]] * 24)])["heaped"].result(30)
    produce(cluster, "heaped", [(f"k{n}", b"v") for n in range(100)])
    balance(page)
    page.get_by_label("Topic").fill("heaped")
    for _ in range(60):
        page.get_by_role("button", name="Search").click()
        if page.get_by_role("region", name="Move of heaped").count():
            break
        page.wait_for_timeout(1_000)  # a look of the balancer, and the move itself
    moved = page.locator("section[aria-label^='Move of heaped-']").first
    text = moved.inner_text()
    assert re.search(r"0 → [123]\b", text), "from where to where"
    assert re.search(r"For (replicas|topic-replicas|leaders)\b", text), "the goal"
    number = r"(\d+\.\d+)"
    gave = re.search(rf"giving broker went from {number} to {number}", text)
    took = re.search(rf"taking one from {number} to {number}", text)
    assert gave is not None and float(gave[1]) > float(gave[2]), text
    assert took is not None and float(took[1]) < float(took[2]), text
    assert "by User:ANONYMOUS" in text, "who has asked for it"


def test_a_tenant_sees_its_own_alone(
    stranger: Any, console: ConsoleProgram, cluster: EmbeddedCluster, hosts: Any
) -> None:
    if hosts is None and cluster_names_unknown():
        pytest.skip("names of tenants do not resolve here, and no private mount namespace can be had")
    key, secret, _ = read_key(key_file(cluster.data / "tenants", "demo"))
    log_in(stranger, console.address, key, "wrong", tenant_id(cluster, "demo"))
    assert "cannot log in" in stranger.locator(".trouble").inner_text()
    log_in(stranger, console.address, key, secret, tenant_id(cluster, "other"))
    assert stranger.locator(".trouble").count() == 1
    log_in(stranger, console.address, key, secret, tenant_id(cluster, "demo"))
    stranger.goto(console.address + "/new-topic")
    stranger.get_by_label("Name", exact=False).first.fill("own")
    stranger.get_by_role("button", name="Create").click()
    done(stranger)
    stranger.goto(console.address + "/topics?internal=yes")
    assert stranger.locator("tbody tr").all_inner_texts()[0].startswith("own")
    assert stranger.locator("tbody tr").count() == 1
    for path in ("/topics/looked-at", "/topics/looked-at/records", "/tenants/one?name=other", "/cells/one?name=a",
                 "/settings?kind=broker&of=0", "/balance", "/tier", "/tenants"):  # fmt: skip
        stranger.goto(console.address + path)
        stranger.wait_for_load_state("networkidle")
        text = stranger.locator("main").inner_text()
        assert "other" not in text.replace("another", ""), path
        assert stranger.locator(".trouble").count() >= 1, path


def cluster_names_unknown() -> bool:
    from bench.private_hosts import names_resolve  # noqa: PLC0415

    return not names_resolve()


def test_a_broker_dies_while_the_page_is_open(page: Any, cluster: EmbeddedCluster, console: ConsoleProgram) -> None:
    page.goto(console.address + "/")
    page.wait_for_selector("#brokers tbody tr")
    cluster.kill("broker-3")
    try:
        page.wait_for_selector("#brokers .tag.bad", timeout=60_000)
        assert page.locator("#numbers .bad").count() >= 1
        page.goto(console.address + "/topics")
        assert page.locator("h1").inner_text() == "Topics"
        page.goto(console.address + "/")
        page.wait_for_selector("li.finding.critical", timeout=60_000)
    finally:
        cluster.command("start", "broker-3")
    page.wait_for_function("() => !document.querySelector('#brokers .tag.bad')", timeout=60_000)


def test_a_console_that_only_reads(stranger: Any, cluster: EmbeddedCluster) -> None:
    with ConsoleProgram(cluster, "--read-only") as reading:
        enter(stranger, reading.address)
        stranger.goto(reading.address + "/topics")
        assert stranger.get_by_role("link", name="Create a topic").count() == 0
        stranger.goto(reading.address + "/new-topic")
        assert stranger.get_by_role("button", name="Create").count() == 0
