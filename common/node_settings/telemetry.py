"""Metrics that clients push to brokers (KIP-714)."""

from dataclasses import dataclass

from common.settings import MIB, setting


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What a broker takes and keeps of them."""

    # fmt: off
    max_bytes: int = setting("telemetry.max.bytes", "int", MIB,
        "Bytes of one push of metrics, both compressed and inflated.", 1, MIB)
    clients_max: int = setting("tidelog.telemetry.clients.max", "int", 16_384,
        "Clients that a broker remembers with their subscriptions; beyond, some of the tenant with most of them go.", 1)
    series_max: int = setting("tidelog.telemetry.series.max", "int", 10_000,
        "Series of clients' metrics that a broker shows; further ones are dropped and counted.", 0, 100_000)
    tenant_series_max: int = setting("tidelog.telemetry.tenant.series.max", "int", 2_000,
        "How many of them may be of one tenant's clients, or of all clients without a tenant.", 0, 100_000)
    label_values_max: int = setting("tidelog.telemetry.label.values.max", "int", 1_000,
        "How many values a label may have in the series of one tenant, such as client ids or topics.", 0, 100_000)
    # fmt: on
