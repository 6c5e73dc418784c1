"""Settings of Apache Kafka without effect here, which its tools change on running brokers. They are accepted, stored
and shown. No group has them, because no code reads them."""

from common.settings import CLUSTER_WIDE, LONG_MAX, Setting

_ONE_LOOP = "a broker is one event loop."


def _inert(name: str, type_name: str, default: object, why: str, low: float | None = None, high: float | None = None,
           update: str = CLUSTER_WIDE, *, per_listener: bool = False) -> Setting:  # fmt: skip
    doc = f"Without effect: {why}"
    return Setting(name, type_name, default, doc, low, high, update=update, per_listener=per_listener, inert=True)


INERT_SETTINGS = [
    _inert("num.io.threads", "int", 8, _ONE_LOOP, 1),
    _inert("num.network.threads", "int", 3, _ONE_LOOP, 1, per_listener=True),
    _inert("background.threads", "int", 10, _ONE_LOOP, 1),
    _inert("num.replica.fetchers", "int", 1, "a follower has one connection to each leader.", 1),
    _inert("log.cleaner.threads", "int", 1, "a broker compacts one log at a time.", 0),
    _inert("log.cleaner.io.buffer.size", "int", 512 << 10, "the cleaner reads batch by batch.", 0),
    _inert("log.cleaner.dedupe.buffer.load.factor", "double", 0.9, "the cleaner counts bytes and not slots.", 0, 1),
    _inert("log.preallocate", "boolean", False, "segments grow as they are written."),
    _inert("metric.reporters", "list", (), "metrics are at tidelog.metrics.listener."),
    _inert("remote.log.index.file.cache.total.size.bytes", "long", 1 << 30, "tidelog.tier.cache.bytes bounds what is "
           "kept of the tier.", 1),
    _inert("remote.log.manager.copier.thread.pool.size", "int", 10, "tidelog.tier.copy.threads says it.", 1),
    _inert("remote.log.manager.expiration.thread.pool.size", "int", 10, "deletion from the tier takes no threads.", 1),
    _inert("remote.log.reader.threads", "int", 10, "tidelog.tier.read.concurrency says it.", 1),
    _inert("remote.log.manager.copy.max.bytes.per.second", "long", LONG_MAX, "tidelog.tier.copy.bytes.per.second says "
           "it.", 1),
    _inert("remote.log.manager.fetch.max.bytes.per.second", "long", LONG_MAX, "tidelog.tier.read.concurrency bounds "
           "reading.", 1),
]  # fmt: skip
