"""Manifests with pages in a whole cluster under faults: few segments fit a head here, so that old ones go into pages.

A page is there before a manifest names it and as long as the newest one does, and head and pages together show the
state. What nobody names any more goes: pages, and objects of copies that came to nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest

from broker.config import BrokerConfig
from tests.sim.bucket import _at_once as finish
from tests.sim.bugs import planted
from tests.sim.cluster import TIER_SETTLES_S, Cluster, run_plan
from tests.sim.invariants import InvariantBroken
from tests.sim.loop import NS
from tests.sim.plan import Plan, draw_plan
from tests.sim.tier_bugs import PAGE_BUGS
from tests.sim.tier_watch import TierWatch, path_of
from tiering.bucket.keys import ManifestKey, PageKey, PartitionPath, TierRoot
from tiering.bucket.segment import SegmentId
from tiering.manifests.manifest import ManifestHead, Paging, decode_head, decode_page

pytestmark = pytest.mark.simulation

PAGING = Paging(head_segments_max=3, page_segments=2)
SEEDS, TRIED = 6, 60
LEFT_BEHIND_NS = 4 * NS


class PagedWatch(TierWatch):
    """Takes a head with what its pages hold for what a manifest shows."""

    pages: dict[PartitionPath, list[str]]

    def putting(self, node: str, key: str, data: bytes, there: bytes | None, sent_ns: int) -> None:
        parsed = self._root().parse_key(key)
        if not isinstance(parsed, ManifestKey):
            super().putting(node, key, data, there, sent_ns)
            return
        if there is not None and there != data:
            raise InvariantBroken(self._name, f"{node} overwrites {key}")
        head = decode_head(data, key)
        if len(head.segments) > PAGING.head_segments_max:
            raise InvariantBroken(self._name, f"{node} publishes {len(head.segments)} segments in a head")
        self._coverage.add("pages named", len(head.pages))
        if self._published(node, parsed, self._whole(parsed.path, head), sent_ns):
            self.pages[parsed.path] = [self._root().page_key(parsed.path, ref.uuid) for ref in head.pages]

    def _whole(self, path: PartitionPath, head: ManifestHead) -> ManifestHead:
        segments = []
        for ref in head.pages:
            key = self._root().page_key(path, ref.uuid)
            body = self._bucket.data(key)
            if body is None:
                raise InvariantBroken(self._name, f"version {head.version} names {key}, which is not there")
            segments += decode_page(body, ref, key)
        return msgspec.structs.replace(head, pages=[], segments=segments + head.segments)

    def deleting(self, node: str, keys: Sequence[str], claims: object) -> None:
        for key in keys:
            if isinstance(self._root().parse_key(key), PageKey):
                self._coverage.add("pages swept")
                if any(key in named for named in self.pages.values()):
                    raise InvariantBroken(self._name, f"{node} deletes {key}, which the newest manifest names")
        super().deleting(node, keys, claims)  # type: ignore[arg-type]


def with_small_pages(config: BrokerConfig) -> BrokerConfig:
    return replace(config, tier=replace(config.tier, paging=PAGING))


class PagedCluster(Cluster):
    left_behind: ClassVar[list[str]] = []

    def __init__(self, plan: Plan, *, keep_trace: bool) -> None:
        super().__init__(plan, keep_trace=keep_trace, broker_change=with_small_pages)

    def _tier_watch(self) -> TierWatch:
        watch = super()._tier_watch()
        watch.__class__ = PagedWatch
        assert isinstance(watch, PagedWatch)
        watch.pages = {}
        return watch

    def run(self) -> None:
        self.world.scheduler.after(LEFT_BEHIND_NS, self._leave_behind)
        super().run()
        if not self.plan.loses_data:
            self.within(TIER_SETTLES_S, self._unswept)

    def _unswept(self) -> str:
        kept = [key for key in self.left_behind if self.bucket.data(key) is not None]
        return f"{kept[0]} is not swept" if kept else ""

    def _leave_behind(self) -> None:
        """What copies and manifests that came to nothing leave: the run ends well only when it is swept."""
        tiers = self.watch.tier
        assert tiers is not None
        root = TierRoot(self.watch.newest.cluster_id or "")
        for number, (identity, tier) in enumerate(tiers.records.tiers.items()):
            path = path_of(identity, tier)
            uuid = f"{number:032x}"
            for key in (root.segment_key(path, SegmentId(tier.tier_end, uuid)), root.page_key(path, uuid)):
                finish(self.bucket.store.put(key, b"left behind"))
                self.left_behind.append(key)


def long_plans() -> list[Plan]:
    """Drawn ones, of topics that keep all that they get in small segments."""
    found = []
    for seed in range(TRIED):
        plan = draw_plan(seed)
        if plan.tier is not None and not plan.loses_data:
            found.append(replace(plan, tier=replace(plan.tier, segment_bytes=1_024, total_bytes=-1)))
    return found[:SEEDS]


def test_pages_hold_under_faults_and_what_nobody_names_goes() -> None:
    reached: Counter[str] = Counter()
    PagedCluster.left_behind.clear()
    for plan in long_plans():
        seen = len(PagedCluster.left_behind)
        report = run_plan(plan, make=PagedCluster)
        assert len(PagedCluster.left_behind) > seen
        assert not report.failure, f"seed {plan.seed}: {report.failure}"
        reached += report.coverage
    assert len(PagedCluster.left_behind) >= 4 * SEEDS
    least = {"pages named": 100, "pages swept": 5, "orphans swept": 2 * SEEDS, "passes over the whole log": 10}
    assert {what: reached[what] for what, count in least.items() if reached[what] < count} == {}


@pytest.mark.long
@pytest.mark.parametrize("bug", PAGE_BUGS)
def test_a_planted_mistake_of_pages_is_found(bug: str) -> None:
    with planted(bug):
        assert any(run_plan(plan, make=PagedCluster).failure for plan in long_plans()[:2])
