"""Imports a node's code in a process that is about to run or fork one."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from tidelog.nodes import bare_packages

ENTERED_BARE = ("kafka", "crc32c")  # of which a node needs the message schemas, and one function
USED_BY_ALL = ("encodings.idna",)  # imported at the first name look-up, so without this once per fork
ENTERED_WITHOUT = {"pysyncobj": "cryptography"}  # which it would take seven megabytes of, for unused features
MODULES = {
    "controller": (
        "tidelog.nodes.node_process",
        "tidelog.configuration.controller_config",
        "tidelog.nodes.exporting_controller",
    ),
    "broker": ("tidelog.nodes.node_process", "broker.node"),
    "proxy": ("tidelog.nodes.proxy_process",),
}
CERTIFICATE_SETTINGS = ("ssl.keystore.location", "ssl.keystore.certificate.chain")  # also with a listener's prefix
CERTIFICATE_MODULES = ("cryptography.x509",)  # megabytes, so only nodes with certificates import them


def import_node(role: str, settings: Iterable[str] = ()) -> None:
    """Import exactly what a node of this role with these settings needs; a second call costs nothing."""
    for package in ENTERED_BARE:
        bare_packages.enter(package)
    if role == "controller":
        for package, missing in ENTERED_WITHOUT.items():
            with bare_packages.absent(missing):
                importlib.import_module(package)
    for module in (*USED_BY_ALL, *MODULES[role]):
        importlib.import_module(module)
    import_certificates(settings)


def import_certificates(settings: Iterable[str]) -> None:
    """Import the code that reads certificates if one of these settings names them; a later import would hold the event
    loop."""
    if any(name.endswith(CERTIFICATE_SETTINGS) for name in settings):
        for module in CERTIFICATE_MODULES:
            importlib.import_module(module)
