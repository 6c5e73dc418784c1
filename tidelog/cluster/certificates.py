"""Certificates for a cluster: an authority, nodes, proxies, and the tenants' wildcard name. ECDSA P-256.

For development and for private networks: docker-compose.yml, `tidelog up`, tests. Operators with their own authority
give its certificates to the settings `ssl.…` instead. A second run keeps what exists, fits its names and does not
expire soon. Files are written atomically, and only their owner reads keys.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3_650
CERTIFICATE_DAYS = 825
RENEWED_BEFORE = datetime.timedelta(days=30)
CLOCKS_APART = datetime.timedelta(days=1)
ORGANIZATION = "Tidelog"
NODE, PROXY, SERVER, CLIENT = "node", "proxy", "server", "client"  # roles: the subject's organizational unit
_USAGES = {
    NODE: (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    PROXY: (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    SERVER: (ExtendedKeyUsageOID.SERVER_AUTH,),
    CLIENT: (ExtendedKeyUsageOID.CLIENT_AUTH,),
}


class DamagedAuthority(Exception):
    """The authority's files do not fit each other; the text says which and what to do."""


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def authority(directory: Path, name: str = "Tidelog development authority") -> Authority:
    """The authority in `directory` (`ca.pem` and `ca.key`), created if neither file exists. Raises DamagedAuthority."""
    certificate_path, key_path = directory / "ca.pem", directory / "ca.key"
    if certificate_path.exists() and key_path.exists():
        return _load_authority(certificate_path, key_path)
    if certificate_path.exists():
        raise DamagedAuthority(f"{certificate_path} is there without {key_path}: give the key back, or remove both")
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name, "authority")
    certificate = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = Authority(certificate, key)
    write_whole(key_path, _key_pem(key), 0o600)  # the certificate last: it shows that both exist
    write_whole(certificate_path, made.pem, 0o600)
    return made


def certificate(directory: Path, file: str, authority: Authority, role: str, name: str, hosts: Sequence[str]) -> Path:
    """`directory/file`: key, certificate and the authority's in one PEM file, for `hosts` (names and addresses).

    A valid one (of this authority, with these names and this role, not about to expire) is kept.
    """
    path = directory / file
    if not _is_good(path, authority, role, name, hosts):
        directory.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = authority.certificate.subject
        builder = (
            _builder(_name(name, role), issuer, key.public_key(), CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_USAGES[role]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
            )
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
        made = builder.sign(authority.key, hashes.SHA256())
        write_whole(path, _key_pem(key) + made.public_bytes(serialization.Encoding.PEM) + authority.pem, 0o600)
    return path


def tenants_certificate(directory: Path, authority: Authority, domain: str) -> Path:
    """`directory/tenants.pem`: for every name of one label below `domain`, which includes all tenants' names."""
    return certificate(directory, "tenants.pem", authority, SERVER, f"*.{domain}", [f"*.{domain}", domain])


def describe(directory: Path) -> list[dict[str, Any]]:
    """A row for the first certificate of every PEM file. Raises OSError."""
    rows = []
    for path in sorted(directory.iterdir()):
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes()) if path.suffix == ".pem" else None
        except ValueError:
            continue
        if found is not None:
            ends = found.not_valid_after_utc
            rows.append(
                {
                    "file": path.name,
                    "name": _subject(found, NameOID.COMMON_NAME),
                    "role": _subject(found, NameOID.ORGANIZATIONAL_UNIT_NAME),
                    "hosts": [str(name.value) for name in _hosts_of(found)],
                    "expires": ends.isoformat(),
                    "days_left": (ends - datetime.datetime.now(datetime.UTC)).days,
                }
            )
    return rows


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """Replace `path` atomically by `data`; it is never readable beyond `mode`."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _load_authority(certificate_path: Path, key_path: Path) -> Authority:
    try:
        loaded = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise DamagedAuthority(f"{certificate_path} and {key_path} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != loaded.public_key():
        raise DamagedAuthority(f"{key_path} is not the key of {certificate_path}")
    return Authority(loaded, key)


def _is_good(path: Path, authority: Authority, role: str, name: str, hosts: Sequence[str]) -> bool:
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        found.verify_directly_issued_by(authority.certificate)
    except (OSError, ValueError, TypeError):
        return False
    except Exception:  # the library's InvalidSignature: another authority's of the same name
        return False
    if found.subject != _name(name, role):
        return False
    try:
        named: Iterable[x509.GeneralName] = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        named = []
    fits = set(named) >= set(_alternatives(hosts))
    return fits and found.not_valid_after_utc - RENEWED_BEFORE > datetime.datetime.now(datetime.UTC)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(name: str, role: str) -> x509.Name:
    """CN=name,OU=role,O=Tidelog, as RFC 2253 writes it."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _subject(certificate: x509.Certificate, field: x509.ObjectIdentifier) -> str:
    return ", ".join(str(part.value) for part in certificate.subject.get_attributes_for_oid(field))


def _hosts_of(certificate: x509.Certificate) -> list[Any]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _alternatives(hosts: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
