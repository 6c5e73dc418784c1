"""`tidelog init`: files that nodes accept, units that keep a node to itself, and nothing lost by a second run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from common.settings import read_properties
from tidelog.command_line import application
from tidelog.configuration.controller_config import controller_config
from tidelog.configuration.node_config import broker_config
from tidelog.configuration.proxy_config import proxy_config
from tidelog.machines.host_plan import RESERVED_NAMES, BadPlan, Place, Plan, plan
from tidelog.machines.node_files import bootstrap, node_properties, scrape_targets
from tidelog.machines.standing_nodes import check_standing, standing
from tidelog.machines.unit_files import HARDENING, SECTIONS, unit_files

READERS = {"controller": controller_config, "broker": broker_config, "proxy": proxy_config}
THREE = ["--machine", "a.test=r1", "--machine", "b.test=r2", "--machine", "c.test=r3", "--domain", "kafka.test"]
RUNNER = CliRunner()


def init(into: Path, *words: str, status: int = 0) -> str:
    done = RUNNER.invoke(application("init"), ["init", str(into), *words])
    assert done.exit_code == status, done.output
    return done.output


def directives(text: str) -> dict[str, list[tuple[str, str]]]:
    """A unit's sections."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            assert line[1:-1] in SECTIONS
            found[line[1:-1]] = []
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals and name.isalpha() and list(found), line
            found[list(found)[-1]].append((name, value))
    return found


@pytest.mark.parametrize("words", [[], ["--brokers", "3"], THREE, [*THREE, "--brokers", "2"]])
def test_every_node_starts_from_its_file(tmp_path: Path, words: list[str]) -> None:
    init(tmp_path, *words)
    hosts = [path for path in tmp_path.iterdir() if (path / "etc").is_dir()]
    for host in hosts:
        for file in (host / "etc/tidelog").glob("*.properties"):
            text = file.read_text().replace("/etc/tidelog", str(host / "etc/tidelog"))
            READERS[text.splitlines()[0].removeprefix("# ")](read_properties(text))


def test_machines_share_the_secret_and_nothing_is_readable_by_others(tmp_path: Path) -> None:
    init(tmp_path, *THREE)
    private = [*tmp_path.rglob("*.pem"), *tmp_path.rglob("*.key"), *tmp_path.rglob("cluster.secret")]
    assert private and {path.stat().st_mode & 0o077 for path in private} == {0}
    assert len({path.read_text() for path in tmp_path.rglob("cluster.secret")}) == 1
    assert not list((tmp_path / "a.test").rglob("*.key")), "no machine has an authority's key"


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    init(tmp_path, *THREE)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    init(tmp_path, *THREE)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


TWO = ["--machine", "a.test", "--machine", "b.test"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*TWO, "--brokers", "2"], "broker 1 is on b.test already, and would be on a.test"),
        (["--machine", "b.test", "--machine", "a.test"], "broker 0 is on a.test already, and would be on b.test"),
        (["--machine", "b.test"], "broker 0 is on a.test already, and would be on b.test"),
        ([], "broker 0 is on a.test already, and would be on 127.0.0.1"),
        (
            [*TWO, "--machine", "c.test"],
            "node 0 of a.test has the voters 1000@a.test, and would have 1000@a.test,1001@",
        ),
        ([*TWO, "--machine", "c.test", "--controllers", "3"], "give --controllers 1"),
    ],
)
@pytest.mark.parametrize("replace", [[], ["--replace"]])
def test_no_later_run_gives_an_id_to_another_machine(
    tmp_path: Path, words: list[str], said: str, replace: list[str]
) -> None:
    init(tmp_path, *TWO)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert said in init(tmp_path, *words, *replace, status=2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_machines_are_added_behind_those_that_there_are(tmp_path: Path) -> None:
    init(tmp_path, *TWO, "--domain", "kafka.test")
    init(tmp_path, *TWO, "--machine", "c.test", "--controllers", "1", "--domain", "kafka.test")
    found = {path.relative_to(tmp_path).parts[0]: path.name for path in tmp_path.rglob("broker-*.properties")}
    assert found == {"a.test": "broker-0.properties", "b.test": "broker-1.properties", "c.test": "broker-2.properties"}
    init(tmp_path, *TWO, "--machine", "c.test", "--controllers", "1", "--port", "9000", "--replace")


def test_a_file_that_no_node_reads_is_named(tmp_path: Path) -> None:
    init(tmp_path, *TWO)
    file = tmp_path / "a.test/etc/tidelog/broker-0.properties"
    file.write_text("node.id\n")
    assert f"{file}: line 1" in init(tmp_path, *TWO, status=2)
    file.write_text("# nothing\n")
    assert f"{file}: kept" in init(tmp_path, *TWO)


def test_what_was_changed_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    init(tmp_path)
    file = tmp_path / "127.0.0.1/etc/tidelog/controller.properties"
    first = file.read_text()
    file.write_text(first + "num.partitions=7\n")
    assert f"{file}: kept" in init(tmp_path)
    assert file.read_text().endswith("num.partitions=7\n")
    init(tmp_path, "--replace")
    assert file.read_text() == first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--machine", "a.test", "--machine", "a.test"], "named twice"),
        (["--machine", "a.test=r1", "--machine", "b.test"], "have a rack"),
        (["--machine", "a.test", "--machine", "A.test"], "named twice"),
        (["--machine", "a.test="], "rack of 'a.test' is empty"),
        (["--machine", "authority"], "no machine can be named 'authority'"),
        (["--machine", "a b"], "no host name"),
        (["--machine", "-a.test"], "no host name"),
        (["--machine", "a.test=r\n1"], "rack"),
        (["--machine", "a.test", "--controllers", "3"], "3 controllers on 1 machines"),
        (["--domain", "kafka.test"], "machines' names"),
        (["--machine", "a.test", "--domain", "kafka.test", "--proxy-port", "9190"], "port 9190"),
        (["--data", "/home/me/data"], "hidden"),
        (["--data", "/tmp"], "hidden"),
        (["--executable", "tidelog"], "absolute path"),
        (["--user", "Robert'); --"], "system user"),
        (["--tier", "s3://bucket/\nnode.id=7"], "no URI"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_line(tmp_path: Path, words: list[str], said: str) -> None:
    output = init(tmp_path, *words, status=2)
    assert said in output
    assert not list(tmp_path.iterdir())


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?(\.test)?", fullmatch=True)
PLANS = st.builds(
    lambda hosts, brokers, has_tenants, port: plan(
        [(host, "") for host in hosts], brokers=brokers, domain="kafka.test" if has_tenants else "", port=port
    ),
    st.lists(NAMES, min_size=1, max_size=6, unique=True),
    st.integers(1, 64),
    st.booleans(),
    st.just(9_092) | st.integers(10_200, 60_000),
)


@given(PLANS)
def test_no_two_nodes_of_a_machine_share_a_port_or_an_id(plan: Plan) -> None:
    assert max(Counter(node.node_id for node in plan.nodes).values()) == 1
    for host in plan.hosts:
        ports = [port for node in plan.of(host) for port in bound_ports(node_properties(plan, node, Place()))]
        assert len(ports) == len(set(ports)) and max(ports) < 1 << 16
    assert len(bootstrap(plan).split(",")) == len(plan.brokers)
    assert all(f":{plan.metrics_port(node)}" in scrape_targets(plan) for node in plan.nodes)
    assert scrape_targets(plan).count("job_name: tidelog\n") == 1, "the job of boards and alarms"


@given(st.lists(PLANS, min_size=2, max_size=2))
def test_a_plan_is_refused_or_leaves_each_node_where_it_is(plans: list[Plan]) -> None:
    old, new = plans
    files = [(node.host, read_properties(node_properties(old, node, Place()))) for node in old.nodes]
    found = [one for host, settings in files if (one := standing(host, settings))]
    assert len(found) == len(old.nodes)
    check_standing(old, found)
    try:
        check_standing(new, found)
    except BadPlan:
        return
    hosts = {node.node_id: node.host for node in old.nodes}
    assert all(hosts.get(node.node_id, node.host) == node.host for node in new.nodes)
    assert [(one.node_id, one.host) for one in old.controllers] == [(one.node_id, one.host) for one in new.controllers]


def bound_ports(text: str) -> list[int]:
    given = read_properties(text)
    addresses = [given["tidelog.metrics.listener"], *filter(None, given.get("listeners", "").split(","))]
    if "tidelog.quorum.voters" in given:
        mine = [one for one in given["tidelog.quorum.voters"].split(",") if one.startswith(f"{given['node.id']}@")]
        addresses += mine
    if "tidelog.proxy.certificate.file" in given:
        addresses.append(f":{given['tidelog.proxy.port']}")
    return [int(address.rpartition(":")[2]) for address in addresses]


@given(PLANS, st.sampled_from(["/var/lib/tidelog", "/srv/tidelog"]))
def test_units_keep_a_node_to_itself_and_restart_it(plan: Plan, data: str) -> None:
    files = unit_files(plan, plan.hosts[0], Place(data=data))
    services = {name: directives(text) for name, text in files.items() if name.endswith(".service")}
    assert len(services) == len({node.role for node in plan.of(plan.hosts[0])})
    for name, sections in services.items():
        service = dict(sections["Service"])
        assert {tuple(line.split("=", 1)) for line in HARDENING} <= set(sections["Service"])
        assert service["Restart"] == "on-failure" and service["RestartPreventExitStatus"] == "2"
        assert dict(sections["Unit"])["StartLimitIntervalSec"] == "0"  # 70, of a stuck disk, as often as it takes
        own = "broker-%i" if "broker" in name else name.rpartition("/")[2][len("tidelog-") : -len(".service")]
        if data.startswith("/var/lib/"):
            assert service["StateDirectory"] == f"tidelog/{own}" and "ReadWritePaths" not in service
        else:
            assert service["ReadWritePaths"] == f"{data}/{own}" and "StateDirectory" not in service
        assert ("MemoryDenyWriteExecute" in service) == ("controller" not in name)
    wants = dict(directives(files["etc/systemd/system/tidelog.target"])["Unit"])["Wants"].split()
    assert wants == [node.unit for node in plan.of(plan.hosts[0])]


@pytest.mark.parametrize("tier", ["s3://bucket/tier", "file:///srv/tier"])
def test_a_proxy_gets_nothing_of_the_tier(tier: str) -> None:
    made = plan([("a.test", "")], domain="kafka.test", tier=tier)
    files = unit_files(made, "a.test", Place(data="/srv/tidelog"))
    for node in made.nodes:
        unit = files[f"etc/systemd/system/{node.unit.replace('@0', '@')}"]
        is_user = node.role != "proxy"
        assert ("EnvironmentFile=-/etc/tidelog/environment" in unit) == is_user
        assert ("ReadWritePaths=/srv/tier\n" in unit) == (is_user and tier.startswith("file:"))
        assert ("tidelog.tier.uri" in node_properties(made, node, Place())) == is_user


@given(PLANS)
def test_every_directory_that_a_node_writes_to_is_made_for_it(plan: Plan) -> None:
    """With ReadWritePaths, systemd starts no unit whose directory is missing."""
    place = Place(data="/srv/tidelog")
    for host in plan.hosts:
        made = [
            line.split()[1] for line in unit_files(plan, host, place)["usr/lib/tmpfiles.d/tidelog.conf"].splitlines()
        ]
        given = [read_properties(node_properties(plan, node, place))["log.dirs"] for node in plan.of(host)]
        assert set(given) <= set(made)


def test_a_proxy_below_port_1024_may_bind_it_and_nothing_else() -> None:
    files = unit_files(plan([("a.test", "")], domain="kafka.test", proxy_port=443), "a.test", Place())
    service = dict(directives(files["etc/systemd/system/tidelog-proxy.service"])["Service"])
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"


def test_there_are_as_many_brokers_as_ids() -> None:
    with pytest.raises(BadPlan, match="1024 brokers"):
        plan([(f"host-{at}", "") for at in range(16)], brokers=64)


def test_no_machine_shares_a_path_with_what_the_whole_cluster_has(tmp_path: Path) -> None:
    init(tmp_path, "--machine", "a.test", "--domain", "kafka.test")
    assert {path.name for path in tmp_path.iterdir()} == {"a.test", *RESERVED_NAMES}
