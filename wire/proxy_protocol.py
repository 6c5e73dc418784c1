"""The PROXY protocol, version 2: the client's address and the server name that it asked for, before its first byte.

A proxy encodes it, a broker parses it. Its sender can claim any address and any tenant, so a broker parses it only on
connections that it has already identified as a proxy's. Source: "The PROXY protocol", versions 1 and 2, section 2.2,
by the authors of haproxy.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from struct import Struct
from typing import NamedTuple

from common.errors import MalformedFrame
from common.ports import Address, Buffer

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
PACKED_MAX = 4_096  # addresses in each cache
_IPV6_BYTES = 16
HEADER_BYTES_MAX = 2_048  # all of it; the protocol would allow 64 KiB of fields that are never read
_HEAD, _PORTS, _FIELD = Struct(">12sBBH"), Struct(">HH"), Struct(">BH")
_PROXY = 0x21  # version 2; the command LOCAL carries no client, and nothing here sends it
_TCP4, _TCP6 = 0x11, 0x21
_AUTHORITY = 0x02
_UNIQUE_FIELDS = {0x01, _AUTHORITY, 0x03, 0x05, 0x20, 0x30}  # each says one thing about the connection
_HOST = re.compile(rb"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


class ProxyHeader(NamedTuple):
    """`authority` is the server name in lower case, None where the proxy did not read any."""

    source: Address
    destination: Address
    authority: str | None


def encode(header: ProxyHeader) -> bytes:
    """The header's bytes. One IPv6 address makes both IPv6, mapped if necessary. Raises ValueError."""
    source, destination, family = _packed(header.source[0]), _packed(header.destination[0]), _TCP4
    if len(source) != len(destination):
        source, destination = _as_ipv6(source), _as_ipv6(destination)
    if len(source) == _IPV6_BYTES:
        family = _TCP6
    body = source + destination + _PORTS.pack(header.source[1], header.destination[1])
    if header.authority is not None:
        body += _authority_field(header.authority)
    return _HEAD.pack(SIGNATURE, _PROXY, family, len(body)) + body


def parse(view: Buffer) -> tuple[ProxyHeader, int] | None:
    """The header at the start of `view` and its size; None while bytes of it are missing.

    Raises MalformedFrame at the first byte that is invalid for a client's TCP connection.
    """
    data = bytes(view[:HEADER_BYTES_MAX])
    if data[: len(SIGNATURE)] != SIGNATURE[: len(data)]:
        raise MalformedFrame("no PROXY protocol header")
    if len(data) < _HEAD.size:
        return None
    _, command, family, length = _HEAD.unpack_from(data)
    if command != _PROXY or family not in (_TCP4, _TCP6):
        raise MalformedFrame("a PROXY header that is not for a TCP connection")
    end = _HEAD.size + length
    if end > HEADER_BYTES_MAX:
        raise MalformedFrame(f"a PROXY header of {end} bytes, over {HEADER_BYTES_MAX}")
    if len(data) < end:
        return None
    width = 4 if family == _TCP4 else 16
    fields = _HEAD.size + 2 * width + _PORTS.size
    if fields > end:
        raise MalformedFrame("a PROXY header whose addresses are cut short")
    source_port, destination_port = _PORTS.unpack_from(data, fields - _PORTS.size)
    source = _host(data[_HEAD.size : _HEAD.size + width]), source_port
    destination = _host(data[_HEAD.size + width : _HEAD.size + 2 * width]), destination_port
    return ProxyHeader(source, destination, _authority(data, fields, end)), end


@lru_cache(maxsize=PACKED_MAX)
def _authority_field(authority: str) -> bytes:
    name = authority.encode("ascii")
    if _HOST.fullmatch(name) is None:
        raise ValueError("the authority is no host name in lower case")
    return _FIELD.pack(_AUTHORITY, len(name)) + name


@lru_cache(maxsize=PACKED_MAX)
def _packed(host: str) -> bytes:
    """An address in bytes; cached, because clients return and a proxy's own addresses are few."""
    return ip_address(host).packed


def _as_ipv6(packed: bytes) -> bytes:
    return packed if len(packed) == _IPV6_BYTES else bytes(10) + b"\xff\xff" + packed


def _host(packed: bytes) -> str:
    """An address as text; a mapped IPv4 address becomes IPv4 again, so that rules for IPv4 apply."""
    address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _authority(data: bytes, at: int, end: int) -> str | None:
    found: str | None = None
    seen: set[int] = set()
    while at < end:
        if at + _FIELD.size > end:
            raise MalformedFrame("a PROXY header with a field cut short")
        kind, length = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        if at + length > end:
            raise MalformedFrame("a PROXY header with a field that runs past its end")
        if kind in seen:
            raise MalformedFrame("a PROXY header that says one thing twice")
        if kind in _UNIQUE_FIELDS:
            seen.add(kind)
        if kind == _AUTHORITY:
            name = data[at : at + length].lower()
            if _HOST.fullmatch(name) is None:
                raise MalformedFrame("a PROXY header whose authority is no host name")
            found = name.decode("ascii")
        at += length
    return found
