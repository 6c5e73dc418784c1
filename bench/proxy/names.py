"""The tenant and the host names that the measurements use."""

from common.host_names import broker_host

DOMAIN = "kafka.test"
TENANT = "lkc-bench0"
HOST = broker_host(0, TENANT, DOMAIN)
