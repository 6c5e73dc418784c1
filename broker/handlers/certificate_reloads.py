"""Reload of certificates at an operator's request.

Behaviour: IncrementalAlterConfigs for a broker sets `ssl.keystore.location` or `ssl.truststore.location`, with or
without a listener's prefix, to the file that is in use. As with Apache Kafka's dynamic key stores, the broker reads it
at once. If the file does not load, the response is INVALID_CONFIG and nothing changes. Nothing is stored in the
metadata. Another file or a key as text is rejected: clients over the network must not choose the files that a broker
reads, nor put a private key where every node keeps it. Each broker handles only requests for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from common.errors import ErrorCode, ProtocolError
from common.settings import SettingError
from kraft.records import ResourceType
from wire.messages import IncrementalAlterConfigsRequest
from wire.tls import TlsContexts

KEYSTORE, TRUSTSTORE = "ssl.keystore.location", "ssl.truststore.location"
_OF_LISTENER = "listener.name."
_SET = 0  # Kafka's AlterConfigOp


class CertificateReloads:
    """`contexts` returns the TLS contexts of this node's listeners; the name of each is its listener's."""

    def __init__(self, node_id: int, contexts: Callable[[], Iterable[TlsContexts]]) -> None:
        self._node_id = node_id
        self._contexts = contexts

    def concerns(self, resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> bool:
        """Whether a resource of IncrementalAlterConfigs asks for a reload, validly or not."""
        is_broker = resource.resource_type == ResourceType.BROKER
        return is_broker and any(_setting(change.name) is not None for change in resource.configs)

    async def change(self, resource: IncrementalAlterConfigsRequest.AlterConfigsResource, validate_only: bool) -> None:
        """Read the files again. Raises ProtocolError; then nothing has changed."""
        if resource.resource_name != str(self._node_id):
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"Certificates are read by each broker: this is {self._node_id}."
            )
        concerned: dict[TlsContexts, None] = {}
        for change in resource.configs:
            concerned.update(dict.fromkeys(self._meant(change)))
        made = []
        for contexts in concerned:
            try:
                made.append((contexts, await contexts.read()))
            except SettingError as error:
                reason = f"The certificates of listener {contexts.config.name} do not load: {error}"
                raise ProtocolError(ErrorCode.INVALID_CONFIG, reason) from error
        if not validate_only:
            for contexts, loaded in made:
                contexts.use(loaded)

    def _meant(
        self, change: IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig
    ) -> Sequence[TlsContexts]:
        found = _setting(change.name)
        if found is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{change.name} cannot be set together with certificates.")
        listener, setting = found
        if change.config_operation != _SET:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{change.name} can be set to the file in use and no more.")
        of_listener = [one for one in self._contexts() if listener in ("", one.config.name.lower())]
        in_use = "keystore_location" if setting == KEYSTORE else "truststore_location"
        meant = [one for one in of_listener if change.value and getattr(one.config, in_use) == change.value]
        if not meant:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                f"{change.name} is not {change.value!r} here: put what is new in the file in use and name that.",
            )
        return meant


def _setting(name: str) -> tuple[str, str] | None:
    """(listener in lower case or "", setting), if `name` is one of the two settings."""
    listener = ""
    if name.startswith(_OF_LISTENER):
        listener, _, name = name.removeprefix(_OF_LISTENER).partition(".")
    return (listener, name) if name in (KEYSTORE, TRUSTSTORE) else None
