"""The Helm chart: what it renders is valid for Kubernetes, fits together, and is configuration that nodes accept."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from common.settings import read_properties
from release.project import ROOT, version
from tests.boards.observe_files import OBSERVE
from tests.packages.kubernetes_api import kubernetes_with
from tidelog.cluster import certificates
from tidelog.configuration.controller_config import controller_config
from tidelog.configuration.node_config import broker_config
from tidelog.configuration.proxy_config import proxy_config

CHART = ROOT / "charts" / "tidelog"
KUBERNETES = ("1.27", "1.33", "1.36")
READERS = {"controller": controller_config, "broker": broker_config, "proxy": proxy_config}
CASES: dict[str, list[str]] = {
    "as it is": [],
    "nothing encrypted": ["tls.enabled=false", "controllers.replicas=1", "brokers.replicas=1"],
    "zones": [
        "brokers.zones={europe-west1-b,europe-west1-c}",
        "brokers.replicas=2",
        "brokers.storage.storageClass=fast",
    ],
    "tenants": ["proxies.enabled=true", "proxies.domain=kafka.example.org", "proxies.service.port=9093"],
    "all": [
        "proxies.enabled=true",
        "proxies.domain=kafka.example.org",
        "brokers.zones={a,b,c}",
        "serviceMonitor.enabled=true",
        "serviceMonitor.labels.release=prometheus",
        "prometheusRule.enabled=true",
        "prometheusRule.labels.release=prometheus",
        "dashboards.enabled=true",
        "dashboards.annotations.grafana_folder=Tidelog",
        "tier.uri=s3://bucket/tier",
        "secrets.objectStore=bucket-keys",
        "secrets.cluster=mine",
        "settings.num\\.partitions=4",
        "networkPolicy.clients[0].namespaceSelector.matchLabels.team=apps",
        "networkPolicy.operators[0].podSelector.matchLabels.who=operators",
        "imagePullSecrets[0].name=registry",
        "brokers.tolerations[0].key=kafka",
        "brokers.nodeSelector.disk=fast",
        "serviceAccount.annotations.role=arn",
    ],
}


@pytest.fixture(scope="session")
def helm() -> str:
    found = shutil.which("helm") or shutil.which("helm", path=str(Path.home() / "go" / "bin"))
    if found is None:
        pytest.skip("helm is missing (go install helm.sh/helm/v3/cmd/helm@v3.18.6)")
    return found


def render(helm: str, settings: list[str], version: str = KUBERNETES[0]) -> list[dict[str, Any]]:
    words = [word for setting in settings for word in ("--set", setting)]
    command = [helm, "template", "stream", str(CHART), "--namespace", "apps", "--kube-version", version, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [made for made in yaml.safe_load_all(done.stdout) if made]


@pytest.fixture(params=CASES, scope="module")
def rendered(request: pytest.FixtureRequest, helm: str) -> list[dict[str, Any]]:
    return render(helm, CASES[request.param])


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_no_fault(helm: str, case: str) -> None:
    words = [word for setting in CASES[case] for word in ("--set", setting)]
    done = subprocess.run([helm, "lint", "--strict", CHART, "--kube-version", "1.33", *words],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0 and "[WARNING]" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_one_of_kubernetes(rendered: list[dict[str, Any]], version: str) -> None:
    for made in rendered:
        if not made["apiVersion"].startswith("monitoring.coreos.com/"):  # of the Prometheus operator
            kubernetes_validate.validate(made, version, strict=True)


def test_names_are_unique_and_refer_to_what_there_is(rendered: list[dict[str, Any]]) -> None:
    names = [(made["kind"], made["metadata"]["name"]) for made in rendered]
    assert len(names) == len(set(names))
    for workload in of(rendered, "StatefulSet", "Deployment"):
        pod = workload["spec"]["template"]
        labels = pod["metadata"]["labels"].items()
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels
        if workload["kind"] == "StatefulSet":
            assert len(workload["metadata"]["name"]) <= 52  # Kubernetes adds a hash and makes a label of it
            (service,) = (made for made in of(rendered, "Service") if name(made) == workload["spec"]["serviceName"])
            assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"].items() <= labels
        assert ("ServiceAccount", pod["spec"]["serviceAccountName"]) in names
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        (container,) = pod["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert all(("ConfigMap", volume["configMap"]["name"]) in names for volume in pod["spec"]["volumes"]
                   if "configMap" in volume)  # fmt: skip


def test_services_policies_and_budgets_select_pods_and_ports_that_there_are(rendered: list[dict[str, Any]]) -> None:
    pods = [workload["spec"]["template"] for workload in of(rendered, "StatefulSet", "Deployment")]
    for made in of(rendered, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = made["spec"]
        selector = spec["selector"] if made["kind"] == "Service" else (spec.get("selector") or spec["podSelector"])
        labels = selector if made["kind"] == "Service" else selector["matchLabels"]
        chosen = [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]
        assert chosen, name(made)
        wanted = {port["targetPort"] for port in spec.get("ports", [])}
        wanted |= {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
        for pod in chosen:
            assert wanted <= {port["name"] for port in pod["spec"]["containers"][0]["ports"]}


def test_every_port_of_a_pod_is_let_in_by_a_policy(rendered: list[dict[str, Any]]) -> None:
    policies = of(rendered, "NetworkPolicy")
    for workload in of(rendered, "StatefulSet", "Deployment"):
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        (policy,) = (one for one in policies if one["spec"]["podSelector"]["matchLabels"].items() <= labels)
        admitted = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert {port["name"] for port in container(workload)["ports"]} == admitted


def test_proxies_do_not_get_the_credentials_of_the_bucket(helm: str) -> None:
    """They serve tenants, and have no use for it."""
    having = {
        labels["app.kubernetes.io/component"]
        for workload in of(render(helm, CASES["all"]), "StatefulSet", "Deployment")
        for labels in [workload["spec"]["template"]["metadata"]["labels"]]
        if "bucket-keys" in str(workload) or "AWS_" in str(workload)
    }
    assert having == {"controller", "broker"}


def test_pods_get_the_secrets_that_their_settings_name_and_no_others(rendered: list[dict[str, Any]]) -> None:
    """So proxies, which the Internet reaches, do not get the nodes' key."""
    (settings,) = (made for made in of(rendered, "ConfigMap") if "broker.properties" in made["data"])
    for workload in of(rendered, "StatefulSet", "Deployment"):
        text = settings["data"][f"{component(workload)}.properties"]
        own = container(workload)
        text += "".join(f"\n{variable['value']}" for variable in own["env"] if "value" in variable)
        mounts = {mount["mountPath"] for mount in own["volumeMounts"] if "/secrets/" in mount["mountPath"]}
        assert mounts == set(re.findall(r"/run/secrets/tidelog/[a-z-]+(?=/)", text)), name(workload)
        assert component(workload) != "proxy" or "/run/secrets/tidelog/nodes" not in mounts


def test_monitors_find_each_pod_once(helm: str) -> None:
    rendered = render(helm, CASES["all"])
    (monitor,) = of(rendered, "ServiceMonitor")
    assert set(monitor["spec"]) == {"selector", "endpoints"}
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    labelled = [
        one for one in of(rendered, "Service") if one["metadata"]["labels"][expression["key"]] in expression["values"]
    ]
    services = [one for one in labelled if "metrics" in {port["name"] for port in one["spec"]["ports"]}]
    found = [one["spec"]["selector"]["app.kubernetes.io/component"] for one in services]
    assert sorted(found) == ["broker", "controller", "proxy"]


def test_rules_and_boards_are_those_of_the_compose_file(helm: str) -> None:
    rendered = render(helm, CASES["all"])
    (rule,) = of(rendered, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    wanted = {path.name: yaml.safe_load(path.read_text())["groups"] for path in (OBSERVE / "rules").iterdir()}
    assert sorted(rule["spec"]["groups"], key=str) == sorted(chain.from_iterable(wanted.values()), key=str)
    boards = [made for made in of(rendered, "ConfigMap") if made["metadata"]["labels"].get("grafana_dashboard") == "1"]
    found = {file: json.loads(text) for made in boards for file, text in made["data"].items()}
    assert found == {path.name: json.loads(path.read_text()) for path in (OBSERVE / "boards").iterdir()}
    assert {made["metadata"]["annotations"]["grafana_folder"] for made in boards} == {"Tidelog"}


def test_the_values_of_the_page_bring_monitoring(helm: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "kubernetes.md").read_text(), re.DOTALL)
    values = tmp_path / "values.yaml"
    values.write_text(block)
    command = [helm, "template", "stream", str(CHART), "--kube-version", "1.33", "--values", str(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = [made["kind"] for made in yaml.safe_load_all(done.stdout) if made]
    assert (kinds.count("ServiceMonitor"), kinds.count("PrometheusRule"), kinds.count("ConfigMap")) == (1, 1, 4)


def test_rules_and_boards_are_made_only_if_asked_for(helm: str) -> None:
    rendered = render(helm, CASES["as it is"])
    assert not of(rendered, "PrometheusRule") and len(of(rendered, "ConfigMap")) == 1


def test_kubernetes_never_replaces_two_brokers_at_the_same_time(rendered: list[dict[str, Any]]) -> None:
    """Sets roll independently of each other, and disruption budgets do not hold for that."""
    sets = [made["spec"] for made in of(rendered, "StatefulSet") if component(made) == "broker"]
    rolling = [spec for spec in sets if spec["updateStrategy"]["type"] != "OnDelete"]
    assert len(rolling) == (1 if len(sets) == 1 and zone(sets[0]) == "any" else 0)
    assert all(spec["minReadySeconds"] == 30 for spec in rolling)


@pytest.mark.parametrize(
    ("there", "zones", "is_refused"),
    [
        ("stream-tidelog-broker", ["a"], True),
        ("stream-tidelog-broker-z0", [], True),
        ("stream-tidelog-broker", [], False),
        ("stream-tidelog-broker-z0", ["a", "b"], False),
    ],
)
def test_brokers_do_not_get_empty_volumes_by_zones_that_come_or_go(
    helm: str, there: str, zones: list[str], *, is_refused: bool
) -> None:
    with kubernetes_with("apps", there) as address:
        command = [helm, "template", "stream", str(CHART), "--namespace", "apps", "--kube-version", "1.33",
                   "--dry-run=server", "--kube-apiserver", address,
                   "--set-json", f"brokers.zones={json.dumps(zones)}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if is_refused:
        assert done.returncode != 0 and f"those of {there} " in done.stderr, done.stderr
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "wanted"), [([], "DoNotSchedule"), (["controllers.spread=ScheduleAnyway"], "ScheduleAnyway")]
)
def test_controllers_share_a_machine_only_if_they_may(helm: str, settings: list[str], wanted: str) -> None:
    found = {
        component(workload): {
            one["topologyKey"]: one["whenUnsatisfiable"]
            for one in workload["spec"]["template"]["spec"]["topologySpreadConstraints"]
        }
        for workload in of(render(helm, [*CASES["tenants"], *settings]), "StatefulSet", "Deployment")
    }
    others = dict.fromkeys(["kubernetes.io/hostname", "topology.kubernetes.io/zone"], "ScheduleAnyway")
    assert found == {
        "controller": others | {"kubernetes.io/hostname": wanted},
        "broker": others,
        "proxy": others,
    }


def test_pods_gain_nothing(rendered: list[dict[str, Any]]) -> None:
    for workload in of(rendered, "StatefulSet", "Deployment"):
        spec, own = workload["spec"]["template"]["spec"], container(workload)
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        assert own["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert own["resources"]["requests"] and own["resources"]["limits"]["memory"]
        assert {own[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {"/healthz"}
        assert own["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert not of(rendered, "Secret"), "secrets are given by name"


def test_nodes_accept_what_their_pods_are_given(rendered: list[dict[str, Any]], secrets: Path) -> None:
    """With the ids, racks and addresses that the first pods of each workload work out by their shell's arithmetic."""
    (settings,) = (made for made in of(rendered, "ConfigMap") if "broker.properties" in made["data"])
    ids: set[int] = set()
    for workload in of(rendered, "StatefulSet", "Deployment"):
        for at in range(workload["spec"]["replicas"]):
            role, given = started(workload, at)
            text = settings["data"][f"{role}.properties"]
            given = read_properties(text) | given
            values = {key: value.replace("/run/secrets/tidelog", str(secrets)) for key, value in given.items()}
            config: Any = READERS[role](values)
            if role != "proxy":
                assert config.node_id not in ids
                ids.add(config.node_id)
            if role == "broker" and "z" in name(workload).rsplit("-", 1)[-1]:
                assert config.rack == workload["spec"]["template"]["metadata"]["labels"]["tidelog/zone"]


def started(workload: dict[str, Any], at: int) -> tuple[str, dict[str, str]]:
    """The role, and what `--set` gives in the pod with that number."""
    script = container(workload)["args"][0].replace("exec tidelog", "echo tidelog")
    pod = {"POD_NAME": f"{name(workload)}-{at}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, env=pod, check=True)
    words = shlex.split(done.stdout)
    assert all(word == "--set" for word in words[4::2]), words
    return words[1], dict(word.split("=", 1) for word in words[5::2])


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What docs/kubernetes.md makes the Secrets of."""
    root = tmp_path_factory.mktemp("secrets")
    authority = certificates.authority(root / "authority")
    for folder, role in [("nodes", "node"), ("server", "server"), ("proxies", "proxy"), ("tenants", "server")]:
        certificates.certificate(root / folder, "tls-combined.pem", authority, role, folder, ["*.kafka.example.org"])
        (root / folder / "ca.crt").write_bytes(authority.pem)
    (root / "cluster").mkdir()
    (root / "cluster" / "cluster.secret").write_text("0123456789abcdef")
    return root


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["controllers.replicas=2"], "controllers"),
        (["controllers.spread=Never"], "spread"),
        (["brokers.spread=ScheduleAnyway"], "spread"),
        (["proxies.enabled=true"], "proxies.domain"),
        (["proxies.enabled=true", "proxies.domain=a.test", "tls.enabled=false"], "needs tls.enabled"),
        (["brokers.zones={a,a}"], "are equal"),
        (["secret.cluster=typo"], "secret"),
        (["authorizer.enable=false"], "authorizer"),
        (["authorizer.enabled=no"], "authorizer"),
        (["podDisruptionBudget.enable=false"], "podDisruptionBudget"),
        (["networkPolicy.enabled=yes"], "networkPolicy"),
        (["serviceMonitor.label.a=b"], "serviceMonitor"),
        (["prometheusRule.enable=true"], "prometheusRule"),
        (["prometheusRule.labels.a=1"], "prometheusRule"),
        (["dashboards.label.a=b"], "dashboards"),
        (["dashboards.enabled=yes"], "dashboards"),
        (["brokers.replica=5"], "replica"),
        (["image.tags=1"], "image"),
    ],
)
def test_values_that_make_no_cluster_are_refused(helm: str, settings: list[str], said: str) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    command = [helm, "template", "stream", str(CHART), "--kube-version", "1.33", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and said in done.stderr


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version()


def test_the_page_names_every_value_that_there_is() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    listed = set(re.findall(r"`([a-zA-Z]+)[.`]", page))
    assert set(values) - listed == set()


def of(rendered: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [made for made in rendered if made["kind"] in kinds]


def name(made: dict[str, Any]) -> str:
    return str(made["metadata"]["name"])


def component(made: dict[str, Any]) -> str:
    return str(made["metadata"]["labels"]["app.kubernetes.io/component"])


def zone(spec: dict[str, Any]) -> str:
    return str(spec["selector"]["matchLabels"]["tidelog/zone"])


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (own,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(own)


def test_a_workload_has_one_container(rendered: list[dict[str, Any]]) -> None:
    def images() -> Iterator[str]:
        for workload in of(rendered, "StatefulSet", "Deployment"):
            yield container(workload)["image"]

    assert set(images()) == {f"tidelog:{version()}"}
