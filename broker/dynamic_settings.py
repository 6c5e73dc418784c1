"""A broker's settings that change while it runs, but for those that topics take their defaults from: what its listeners
accept, how its cleaner works, and how long clients wait for the tier."""

from __future__ import annotations

from broker.config import BrokerConfig
from broker.data_plane import DataPlane
from kraft.image.configs import CLUSTER_DEFAULT
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import ResourceType
from wire.listeners import counts_by_address
from wire.server import Server


class DynamicSettings:
    """Hands the values that hold under an image to those that obey them."""

    def __init__(self, config: BrokerConfig, data_plane: DataPlane, server: Server) -> None:
        self.remote_list_offsets_ms = config.tier_reads.remote_list_offsets_request_timeout_ms
        """How long a look-up by time may search the tier."""
        self._concerned = ((ResourceType.BROKER, CLUSTER_DEFAULT), (ResourceType.BROKER, str(config.node_id)))
        self._settings = data_plane.settings
        self._server = server
        self._duties = data_plane.duties
        self._fetch = data_plane.fetch

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if any(resource in delta.configs_changed for resource in self._concerned):
            self._limit_connections(image)
            self._fetch.remote_wait_ms = self._settings.node_value(image, "remote.fetch.max.wait.ms")
            self.remote_list_offsets_ms = self._settings.node_value(image, "remote.list.offsets.request.timeout.ms")
            self._duties.configure_cleaner(
                backoff_ms=self._settings.node_value(image, "log.cleaner.backoff.ms"),
                dedupe_buffer_bytes=self._settings.node_value(image, "log.cleaner.dedupe.buffer.size"),
                io_bytes_per_second_max=self._settings.node_value(image, "log.cleaner.io.max.bytes.per.second"),
            )

    def _limit_connections(self, image: MetadataImage) -> None:
        def value(name: str, listener: str = "") -> int:
            own = f"listener.name.{listener.lower()}." if listener else ""
            number: int = self._settings.node_value(image, own + name)
            return number

        self._server.limit_connections(
            value("max.connections"),
            value("max.connections.per.ip"),
            counts_by_address(self._settings.node_value(image, "max.connections.per.ip.overrides")),
            value("max.connection.creation.rate"),
        )
        for listener in self._server.listener_names:
            self._server.limit_listener(
                listener, value("max.connections", listener), value("max.connection.creation.rate", listener)
            )
