"""All pages, in the order of the menu, and all acts."""

from __future__ import annotations

from console.pages import (
    acls,
    audit,
    balance,
    cells,
    groups,
    overview,
    records,
    settings,
    tenants,
    tier,
    topics,
    transactions,
)
from console.web.page import Act, Page

MODULES = (overview, topics, records, groups, transactions, tenants, cells, balance, tier, acls, audit, settings)

PAGES: tuple[Page, ...] = tuple(page for module in MODULES for page in module.PAGES)
ACTS: tuple[Act, ...] = tuple(act for module in MODULES for act in module.ACTS)
