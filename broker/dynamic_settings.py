"""Settings that change while a broker runs, except defaults of topics: listeners' limits, the cleaner, waits for the
tier, questions about transactions."""

from __future__ import annotations

from broker.config import BrokerConfig
from broker.data_plane import DataPlane
from common.node_settings.listeners import AcceptSettings
from kraft.image.configs import CLUSTER_DEFAULT
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import ResourceType
from wire.server import Server


class DynamicSettings:
    """Passes changed groups of settings to the parts of the broker that use them."""

    def __init__(self, config: BrokerConfig, data_plane: DataPlane, server: Server) -> None:
        self.tier_reads = config.tier_reads
        self._config = config
        self._concerned = ((ResourceType.BROKER, CLUSTER_DEFAULT), (ResourceType.BROKER, str(config.node_id)))
        self._settings = data_plane.settings
        self._server = server
        self._duties = data_plane.duties
        self._fetch = data_plane.fetch
        self._transactions = data_plane.transactions

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if any(resource in delta.configs_changed for resource in self._concerned):
            config, settings = self._config, self._settings
            self.tier_reads = settings.under(image, config.tier_reads)
            self._fetch.wait_for_tier(self.tier_reads.remote_fetch_max_wait_ms)
            self._transactions.configure(settings.under(image, config.verification))
            self._duties.configure_cleaner(settings.under(image, config.duties))
            self._server.limit_connections(settings.under(image, config.limits))
            for listen in config.listeners:
                if listen.name in self._server.listener_names:
                    own = AcceptSettings(connections_max=listen.connections_max, creation_rate=listen.creation_rate)
                    self._server.limit_listener(listen.name, settings.of_listener_under(image, own, listen.name))
