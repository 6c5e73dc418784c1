"""Panels of boards as values, and the JSON that Grafana reads."""

from __future__ import annotations

from typing import Any, NamedTuple

WIDTH, HEIGHT = 8, 7
SMALL_WIDTH, SMALL_HEIGHT = 4, 4
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
RATE = "[$__rate_interval]"
BY_NODE = "{{instance}}"


class Query(NamedTuple):
    """`legend` in Grafana's form, such as {{instance}}."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """`unit` is Grafana's name of it. A small panel shows one number; `red` from this value on."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    small: bool = False
    red: float | None = None


class Row(NamedTuple):
    """Panels under one title."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """A choice of the board's reader: the values of a label of a metric."""

    name: str
    label: str
    metric: str


class Board(NamedTuple):
    """One file. `links` are other boards' names."""

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    @property
    def queries(self) -> list[str]:
        return [query.expr for row in self.rows for panel in row.panels for query in panel.queries]


def panel(title: str, about: str, unit: str, *queries: Query | str) -> Panel:
    made = tuple(Query(query) if isinstance(query, str) else query for query in queries)
    return Panel(title, about, unit, made)


def number(title: str, about: str, expr: str, unit: str = "none", red: float | None = None) -> Panel:
    return Panel(title, about, unit, (Query(expr),), small=True, red=red)


def board_json(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        panels.append(_row(row, len(panels) + 1, y))
        y += 1
        x = line = 0
        for one in row.panels:
            width, height = (SMALL_WIDTH, SMALL_HEIGHT) if one.small else (WIDTH, HEIGHT)
            if x + width > COLUMNS:
                x, y, line = 0, y + line, 0
            panels.append(_panel(one, len(panels) + 1, {"x": x, "y": y, "w": width, "h": height}))
            x, line = x + width, max(line, height)
        y += line
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.about,
        "tags": ["tidelog"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [{"type": "dashboards", "title": "Tidelog", "tags": ["tidelog"], "asDropdown": True}],
        "templating": {"list": [_source(), *map(_variable, board.variables)]},
        "panels": panels,
    }


def _row(row: Row, number_: int, y: int) -> dict[str, Any]:
    return {
        "id": number_,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        "panels": [],
    }


def _panel(one: Panel, number_: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if one.red is not None:
        steps.append({"color": "red", "value": one.red})
    defaults: dict[str, Any] = {"unit": one.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if not one.small:  # an axis begins at 0 unless a value is below, as that of an overdrawn budget
        defaults["custom"] = {"axisSoftMin": 0}
    made: dict[str, Any] = {
        "id": number_,
        "type": "stat" if one.small else "timeseries",
        "title": one.title,
        "description": one.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "instant": one.small,
                "range": not one.small,
            }
            for at, query in enumerate(one.queries)
        ],
    }
    if one.small:
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "none"}
    else:
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return made


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({variable.metric}, {variable.name})", "refId": "A"},
        "definition": f"label_values({variable.metric}, {variable.name})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
