"""`tidelog quotas shares | slo | what-if`: tenants' quotas over several brokers. docs/quotas.md explains them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from common.node_settings.shares import ShareMode
from common.settings import LONG_MAX
from kraft.quotas.what_if import BUDGET_S, WEEK_S, Policy, TenantUsage, replay, within_budget
from tidelog.admin.admin_client import CommandOptions, admin_client
from tidelog.admin.quota_admin import Splits, described_shares
from tidelog.admin.replica_moves import Refused
from tidelog.admin.usage_admin import OPERATORS
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, Json, fail, show

app = CommandGroup("Quotas of clients: list, describe, alter, delete. Of tenants: shares, slo, what-if.")
INTERVAL_S = 10.0
DAYS_MAX = 100  # of recorded usage, each interval of which a replay keeps for every tenant
INTERVALS_MAX = DAYS_MAX * 86_400 / INTERVAL_S
ANY = "*"


@app.command()
def shares(
    tenant: Annotated[str, typer.Argument(help="The tenant's name or id.", metavar="TENANT")],
    *,
    options: CommandOptions,
) -> None:
    """How a tenant's quotas are split over its brokers: bytes, or nanoseconds of event loops, per second."""
    found = _described(options, tenant)
    rows = share_rows(found.tenants)
    columns = ["resource", "quota", "used", "broker", "broker_used", "share", "target"]
    show(found.tenants if options.as_json else rows, as_json=options.as_json, columns=columns, empty="no quotas")
    if not options.as_json and rows and (said := about(found.mode, rows)):
        print(said, file=sys.stderr)


@app.command()
def slo(options: CommandOptions) -> None:
    """The tenants that were throttled since the controller became active, those first that waited without need.

    The objective is at most 300 unfair seconds in a week for 99.9 % of tenants.
    """
    found = _described(options, None)
    rows = sorted(found.tenants, key=lambda row: (-row["unfair_s"], -row["throttled_s"]))
    budget_s = BUDGET_S * found.since_s / WEEK_S
    shown = [{name: row[name] for name in ("tenant", "id", "throttled_s", "unfair_s")} for row in rows]
    for row in shown:
        row["within_budget"] = row["unfair_s"] <= budget_s
    columns = ["tenant", "throttled_s", "unfair_s", "within_budget"]
    show(shown, as_json=options.as_json, columns=columns, empty="no tenant was throttled")
    if not options.as_json:
        print(f"in {found.since_s:.0f} s, of which {budget_s:.1f} s may be unfair", file=sys.stderr)


@app.command("what-if")
def what_if(
    usage: Annotated[
        Path,
        typer.Option(
            "--usage", help="A file of `tidelog usage record`.", exists=True, dir_okay=False, metavar="FILE"
        ),
    ],
    policy: Annotated[Policy, typer.Option(help="How quotas would have been split.")],
    quota: Annotated[
        list[str] | None,
        typer.Option("--quota", help="Bytes per second of a tenant, or of all others by *=BYTES.",
                     metavar="TENANT=BYTES"),
    ] = None,
    reserved: Annotated[
        list[str] | None, typer.Option("--reserved", help="What a tenant has reserved.", metavar="TENANT=BYTES")
    ] = None,
    capacity: Annotated[
        int, typer.Option(min=0, max=LONG_MAX, help="Bytes per second that one broker can serve; 0: any.")
    ] = 0,
    direction: Annotated[str, typer.Option(help="in: bytes that clients send; out: that they are sent.")] = "in",
    as_json: Json = False,
) -> None:  # fmt: skip
    """For how long tenants would have been throttled, from recorded usage. It asks no cluster."""
    if direction not in ("in", "out"):
        fail(f"--direction {direction!r}: it must be in or out", EXIT_USAGE)
    quotas, kept = _numbers("--quota", quota), _numbers("--reserved", reserved)
    if not quotas:
        fail("give at least one --quota TENANT=BYTES, or --quota '*=BYTES'", EXIT_USAGE)
    # What is no text is then no report of its line either.
    with usage.open(encoding="utf-8", errors="replace") as lines:
        tenants, brokers = recorded(lines, f"{direction}_rate", quotas, kept)
    for tenant in sorted({*quotas, *kept} - {*tenants, ANY}):
        print(f"tidelog: no report has a tenant {tenant}", file=sys.stderr)
    found = replay(policy, tenants, brokers, INTERVAL_S, capacity)
    rows = [
        {"tenant": tenant, "quota": tenants[tenant].quota, "throttled_s": one.all_s, "unfair_s": one.unfair_s}
        for tenant, one in sorted(found.items(), key=lambda item: (-item[1].unfair_s, item[0]))
    ]
    show(rows, as_json=as_json, columns=["tenant", "quota", "throttled_s", "unfair_s"], empty="no tenant has a quota")
    if not as_json:
        observed_s = INTERVAL_S * max((len(one.intervals) for one in tenants.values()), default=0)
        print(f"{within_budget(found, observed_s):.2%} of tenants within the objective", file=sys.stderr)


def about(mode: str, rows: Iterable[dict[str, Any]]) -> str:
    """What explains the rows of shares, or nothing."""
    if mode == ShareMode.STATIC:
        return "tidelog.quota.shares=static: each broker holds an even part"
    if mode == ShareMode.OBSERVE:
        return "tidelog.quota.shares=observe: each broker holds an even part, and would hold its target"
    if not any(row["share"] is not None for row in rows):
        return "no broker has a share: the tenant is far enough below its quotas"
    return ""


def share_rows(tenants: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each broker of each quota that is limited."""
    return [
        {
            "resource": quota["resource"],
            "quota": quota["quota"],
            "used": quota["used"],
            "broker": broker["broker"],
            "broker_used": broker["used"],
            "share": broker["share"],
            "target": broker["target"],
        }
        for tenant in tenants
        for quota in tenant["quotas"]
        if quota["quota"]
        for broker in quota["brokers"]
    ]


def recorded(
    lines: Iterable[str], rate: str, quotas: dict[str, int], kept: dict[str, int]
) -> tuple[dict[str, TenantUsage], list[int]]:
    """Tenants' usage by name in intervals of `INTERVAL_S`, and the brokers. A rate holds until the broker's next
    report; an unknown one counts as none. Quotas of any tenant are not for what operators use."""
    rates: dict[str, dict[int, dict[int, int]]] = {}
    brokers: dict[int, None] = {}
    first: int | None = None
    last = 0
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            at = int(row["time_ms"] / 1000 // INTERVAL_S)
            broker = int(row["broker"])
            used = [(str(one["tenant"]), int(one[rate] or 0)) for one in row["tenants"]]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            fail(f"line {number} is no report of `tidelog usage record`: {error}", EXIT_USAGE)
        first = at if first is None else min(first, at)
        last = max(last, at)
        if last - first > INTERVALS_MAX:
            fail(f"line {number} makes the time longer than {DAYS_MAX} days: has a clock jumped?", EXIT_USAGE)
        brokers[broker] = None
        for tenant, value in used:
            rates.setdefault(tenant, {}).setdefault(at, {})[broker] = max(value, 0)
    if first is None:
        fail("the file has no reports of `tidelog usage record`", EXIT_USAGE)
    length, nothing = last - first + 1, dict[int, int]()
    return {
        tenant: TenantUsage(
            quotas.get(tenant, 0 if tenant == OPERATORS else quotas.get(ANY, 0)),
            [by_time.get(first + at, nothing) for at in range(length)],
            kept.get(tenant, kept.get(ANY, 0)),
        )
        for tenant, by_time in rates.items()
    }, sorted(brokers)


def _described(options: CommandOptions, tenant: str | None) -> Splits:
    with admin_client(options) as client:
        try:
            found = described_shares(client, tenant)
        except Refused as error:
            fail(str(error))
    if found.is_keeping:
        print("the controller has just become active: brokers keep their shares until all have reported",
              file=sys.stderr)  # fmt: skip
    return found


def _numbers(option: str, texts: list[str] | None) -> dict[str, int]:
    found = {}
    for text in texts or ():
        name, separator, value = text.rpartition("=")
        if not (separator and name and value.isascii() and value.isdigit()):
            fail(f"{option} {text!r}: it must be TENANT=BYTES", EXIT_USAGE)
        found[name] = int(value)
    return found
