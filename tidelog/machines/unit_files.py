"""Units of systemd for the nodes of one machine, and what else makes them run there: user, directories. No I/O.

The units give a node its own directory, the network, and nothing else. Each directive that is not plain hardening has
its reason beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.machines.host_plan import Node, Place, Plan, Role

TARGET = "tidelog.target"
STATE, DIRECTORY = "/var/lib/", "file://"
PRIVILEGED_PORTS = 1_024
OPEN_FILES = {"controller": 65_536, "broker": 1_048_576, "proxy": 262_144}
STOP_S = {"controller": 30, "broker": 60, "proxy": 45}
"""A broker hands its leaderships over first; a proxy closes connections over tidelog.proxy.drain.ms (30 s)."""
SECTIONS = ("Unit", "Service", "Install")

HARDENING = (
    "NoNewPrivileges=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "RemoveIPC=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged",
    "SystemCallErrorNumber=EPERM",
)


def unit_files(plan: Plan, host: str, place: Place) -> dict[str, str]:
    """By path from the root of the machine's file system."""
    nodes = plan.of(host)
    files = {f"etc/systemd/system/{TARGET}": _target(nodes)}
    for role in dict.fromkeys(node.role for node in nodes):
        name = "tidelog-broker@.service" if role == "broker" else f"tidelog-{role}.service"
        files[f"etc/systemd/system/{name}"] = _service(role, plan, place)
    files["usr/lib/sysusers.d/tidelog.conf"] = f'u {place.user} - "Tidelog" {place.data} -\n'
    files["usr/lib/tmpfiles.d/tidelog.conf"] = _ownership(plan, nodes, place)
    return files


def _service(role: Role, plan: Plan, place: Place) -> str:
    name = "broker-%i" if role == "broker" else role
    what = "broker %i" if role == "broker" else role
    after = "network-online.target" + (" tidelog-controller.service" if role != "controller" else "")
    unit = [
        f"Description=Tidelog {what}",
        "Wants=network-online.target",
        f"After={after}",
        f"PartOf={TARGET}",
        f"RequiresMountsFor={place.data}",
        "# A node whose disk hangs ends with 70 and tries again until the disk answers: never give up.",
        "StartLimitIntervalSec=0",
    ]
    service = [
        "Type=exec",
        f"User={place.user}",
        f"Group={place.user}",
        f"ExecStart={place.executable} {role} --config {place.configuration}/{name}.properties",
        *(["ExecReload=/bin/kill -USR1 $MAINPID"] if role == "proxy" else []),
        "Restart=on-failure",
        "RestartSec=2",
        "# 2 is a wrong setting, which no further start makes right.",
        "RestartPreventExitStatus=2",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S[role]}",
        "Environment=PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1",
        *(_credentials(place) if role != "proxy" else []),
        f"LimitNOFILE={OPEN_FILES[role]}",
        "# Memory holds the cluster's secret.",
        "LimitCORE=0",
        "UMask=0077",
        *_directories(role, name, plan, place),
        *HARDENING,
        *_capabilities(role, plan),
    ]
    if role != "controller":  # which runs Spark's jobs (tidelog.spark.schedule), and Java writes its own code
        service.append("MemoryDenyWriteExecute=yes")
    return _text(unit, service, [f"WantedBy={TARGET}"])


def _credentials(place: Place) -> list[str]:
    """Not for proxies, which tenants reach and which have no use for the object store."""
    return [
        "# Where the object store's credentials go, AWS_ACCESS_KEY_ID and the like; systemd reads it as root.",
        f"EnvironmentFile=-{place.configuration}/environment",
    ]


def _directories(role: Role, name: str, plan: Plan, place: Place) -> list[str]:
    """What a node may write to: its own data, and a tier that is a directory."""
    has_tier = role != "proxy" and plan.tier.startswith(DIRECTORY)
    lines = [f"ReadWritePaths={plan.tier.removeprefix(DIRECTORY)}"] if has_tier else []
    data = f"{place.data}/{name}"
    if data.startswith(STATE):
        return [*lines, f"StateDirectory={data.removeprefix(STATE)}", "StateDirectoryMode=0700"]
    return [*lines, f"ReadWritePaths={data}"]


def _capabilities(role: Role, plan: Plan) -> list[str]:
    if role == "proxy" and plan.proxy_port < PRIVILEGED_PORTS:
        return ["AmbientCapabilities=CAP_NET_BIND_SERVICE", "CapabilityBoundingSet=CAP_NET_BIND_SERVICE"]
    return ["CapabilityBoundingSet=", "AmbientCapabilities="]


def _target(nodes: Sequence[Node]) -> str:
    wants = " ".join(node.unit for node in nodes)
    return _text(
        ["Description=The Tidelog nodes of this machine", f"Wants={wants}"], [], ["WantedBy=multi-user.target"]
    )


def _ownership(plan: Plan, nodes: Sequence[Node], place: Place) -> str:
    """Nodes read their configuration and change none of it; secrets and keys are readable by them alone."""
    lines = [
        *(f"d {path} 0700 {place.user} {place.user} -" for path in (place.data, *_own_directories(nodes, place))),
        f"z {place.configuration} 0750 root {place.user} -",
        f"z {place.configuration}/*.properties 0640 root {place.user} -",
        f"z {place.configuration}/cluster.secret 0640 root {place.user} -",
        f"z {place.configuration}/environment 0600 root root -",
    ]
    if not plan.is_single:
        lines += [
            f"z {place.configuration}/tls 0750 root {place.user} -",
            f"z {place.configuration}/tls/*.pem 0640 root {place.user} -",
        ]
    return "\n".join(lines) + "\n"


def _own_directories(nodes: Sequence[Node], place: Place) -> list[str]:
    """A unit with ReadWritePaths does not start before they exist."""
    return [f"{place.data}/{node.name}" for node in nodes]


def _text(*sections: list[str]) -> str:
    parts = [f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in zip(SECTIONS, sections, strict=True) if lines]
    return "\n".join(parts)
