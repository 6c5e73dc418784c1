"""Quotas of clients and tenants."""

from dataclasses import dataclass

from common.settings import setting


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The windows over which rates are taken. As in Apache Kafka, one window is the current one."""

    # fmt: off
    window_num: int = setting("quota.window.num", "int", 11,
        "Samples over which the rate of a client quota is taken, the current one included.", 1, 3_600)
    window_size_s: int = setting("quota.window.size.seconds", "int", 1,
        "Length of such a sample.", 1, 3_600)
    # fmt: on


@dataclass(frozen=True, slots=True)
class ControllerQuotaSettings:
    """How much of `controller_mutation_rate` may be used at once."""

    # fmt: off
    window_num: int = setting("controller.quota.window.num", "int", 11,
        "Samples of a controller_mutation_rate quota: a client may use this many samples' worth at once.", 1)
    window_size_s: int = setting("controller.quota.window.size.seconds", "int", 1,
        "Length of such a sample.", 1)
    # fmt: on
