"""Overview: is all well, what is wrong, and what to do about it."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from console.queries.catalogue import FRESH_S, KEY, STALE_S, catalogue
from console.queries.cluster import cluster, controllers, usage
from console.queries.examination import examined
from console.web.page import Act, Page
from console.web.visit import Visit

LOOK_FRESH_S = 4.0
EXAMINED_FRESH_S = 60.0


async def overview(visit: Visit) -> Response:
    brokers, quorum, topics, load = await asyncio.gather(
        visit.panel(cluster, key="cluster", fresh_s=LOOK_FRESH_S),
        visit.panel(controllers, key="controllers", fresh_s=LOOK_FRESH_S),
        visit.panel(catalogue, key=KEY, fresh_s=FRESH_S, stale_s=STALE_S),
        visit.panel(usage, key="usage", fresh_s=LOOK_FRESH_S),
    )
    return visit.show("overview.html", brokers=brokers, quorum=quorum, topics=topics, load=load)


async def findings(visit: Visit) -> Response:
    """Apart from the rest, because it asks for much; again only after a while, or when a broker has come or gone."""
    brokers = await visit.panel(cluster, key="cluster", fresh_s=LOOK_FRESH_S)
    live = tuple(brokers.value.live) if brokers.value is not None else ()
    found = await visit.panel(examined, key=("examined", live), fresh_s=EXAMINED_FRESH_S)
    return visit.show("_findings.html", found=found)


PAGES = (Page("/", overview, "Overview"), Page("/overview/findings", findings))
ACTS: tuple[Act, ...] = ()
