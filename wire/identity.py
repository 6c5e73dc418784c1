"""The identity of a connection's peer as known from its transport, before any SASL exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from common.ports import Address
from wire.listeners import SecurityProtocol

PROXY_ROLE = "proxy"  # the organizational unit in a proxy's client certificate
_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_MAIL = "emailAddress"  # RFC 2253 has no keyword for it: its number and the value's bytes as an IA5String


class PeerIdentity(Struct, frozen=True):
    """`client_address` is from the PROXY header on listeners behind a proxy, else the socket's peer.

    `tls_principal` is "User:" and the mapped name of the client's certificate, None without one. `server_name` is the
    host that the client asked for, in lower case, from its hello or from the proxy that ended its TLS.
    """

    security_protocol: SecurityProtocol
    client_address: Address
    tls_principal: str | None = None
    server_name: str | None = None
    tls_cipher: str = ""
    tls_version: str = ""


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate (see `ssl.SSLSocket.getpeercert`) as RFC 2253 writes it: "CN=…,OU=…,O=…".

    The order is that of Java's X500Principal, which Apache Kafka's mapping rules are written for.
    """
    parts = ["+".join(_attribute(name, value) for name, value in part) for part in certificate.get("subject", ())]
    return ",".join(reversed(parts))


def has_role(certificate: Mapping[str, Any], role: str) -> bool:
    """Whether the subject's organizational unit is `role`."""
    return any(attribute == ("organizationalUnitName", role) for part in certificate["subject"] for attribute in part)


def _attribute(name: str, value: str) -> str:
    if name == _MAIL:
        raw = value.encode("latin-1", "replace")
        size = bytes([len(raw)]) if len(raw) < 0x80 else b"\x82" + len(raw).to_bytes(2, "big")
        encoded = b"\x16" + size + raw
        return f"1.2.840.113549.1.9.1=#{encoded.hex()}"
    return f"{_KEYWORDS.get(name, name)}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = "".join("\\" + character if character in ',+"\\<>;=' else character for character in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    if value.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text
