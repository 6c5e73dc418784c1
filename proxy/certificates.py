"""The proxy's certificates: contexts created from files, reloaded when these change, and warnings before they
expire."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.certificate_files import FileState, load_chain, read_pem, state_of
from proxy.server_tls import ServerContext

logger = logging.getLogger(__name__)

DAY_S = 86_400.0


class CertificateProblem(Exception):
    """No TLS context can be created from these files; the text names the file."""


@dataclass(frozen=True, slots=True)
class ChainFiles:
    """Paths of PEM files. With an empty `key` the certificate's file holds the key."""

    certificate: str
    key: str = ""

    def paths(self) -> list[str]:
        return [path for path in (self.certificate, self.key) if path]


def server_context(files: ChainFiles) -> ServerContext:
    """The TLS context for connections from clients. Raises CertificateProblem."""
    try:
        chain = read_pem(files.certificate)
        return ServerContext(chain, read_pem(files.key) if files.key else chain)
    except (OSError, ValueError) as error:
        raise CertificateProblem(f"{' or '.join(files.paths())}: {_words(error)}") from error


def broker_context(files: ChainFiles, authority: str, *, check_hostname: bool = True) -> ssl.SSLContext:
    """The TLS context for connections to brokers, with this proxy's certificate. Raises CertificateProblem."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    try:
        context.load_verify_locations(cadata=read_pem(authority))
    except (OSError, ValueError) as error:
        raise CertificateProblem(f"{authority}: {_words(error)}") from error
    try:
        chain = read_pem(files.certificate)
        load_chain(context, chain, read_pem(files.key) if files.key else "", "")
    except (OSError, ValueError) as error:
        raise CertificateProblem(f"{' or '.join(files.paths())}: {_words(error)}") from error
    return context


def ends_at(files: ChainFiles) -> float:
    """When the first certificate of the chain expires, in seconds since the epoch. Raises CertificateProblem."""
    from cryptography import x509  # noqa: PLC0415  large and rarely needed

    try:
        chain = x509.load_pem_x509_certificates(read_pem(files.certificate).encode())
    except (OSError, ValueError) as error:
        raise CertificateProblem(f"{files.certificate}: {_words(error)}") from error
    return min(one.not_valid_after_utc.timestamp() for one in chain)


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate with its key").lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


Context = TypeVar("Context")


class ReloadedContext(Generic[Context]):
    """A context that is reloaded when its files change.

    The old context stays in force, with a line in the log, when the new files are invalid or expired.
    """

    def __init__(
        self,
        make: Callable[[], Context],
        certificates: ChainFiles,
        changed: Callable[[Context], None],
        now_s: Callable[[], float],
        more_paths: Sequence[str] = (),
    ) -> None:
        """`now_s` returns seconds since the epoch; `make` also reads `more_paths`. Raises CertificateProblem."""
        self._make = make
        self._certificates = certificates
        self._changed = changed
        self._now_s = now_s
        self._paths = [*certificates.paths(), *more_paths]
        self._state: FileState = state_of(self._paths)
        self.context = make()
        self.reloads = self.failures = 0

    def look(self, *, anyway: bool = False) -> None:
        """Reload the context if a file has changed, or `anyway`."""
        state = state_of(self._paths)
        if state == self._state and not anyway:
            return
        self._state = state
        try:
            context = self._make()
            if ends_at(self._certificates) <= self._now_s():
                raise CertificateProblem(f"{self._certificates.certificate}: it has ended already")
        except CertificateProblem as problem:
            self.failures += 1
            logger.error("certificate not reloaded, the old one stays in force: %s", problem)
            return
        self.context = context
        self.reloads += 1
        logger.info("certificate reloaded", extra={"files": " ".join(self._paths)})
        self._changed(self.context)


class ExpiryWatch:
    """Logs that a certificate is about to expire: daily from `warn_days` before, and when it expires."""

    def __init__(self, files: ChainFiles, warn_days: float) -> None:
        self._files, self._warn_days = files, warn_days
        self._said: tuple[float, int] | None = None
        self._state: FileState | None = None
        self.ends_s = 0.0

    def look(self, now_s: float) -> None:
        state = state_of(self._files.paths())
        if state != self._state:
            self._state = state
            try:
                self.ends_s = ends_at(self._files)
            except CertificateProblem as problem:
                logger.error("the end of a certificate is not known: %s", problem)
        if not self.ends_s:  # unreadable new files leave the old certificate's end, because that one is in force
            return
        left_days = (self.ends_s - now_s) / DAY_S
        step = (self.ends_s, max(-1, int(left_days // 1)))
        if left_days > self._warn_days or step == self._said:
            return
        self._said = step
        extra = {"file": self._files.certificate, "days": f"{left_days:.1f}"}
        if left_days <= 0:
            logger.error("the certificate has ended: clients refuse it", extra=extra)
        else:
            logger.warning("the certificate ends soon", extra=extra)
