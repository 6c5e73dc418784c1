"""What `promtool check metrics` asks of names, units and help texts, for where there is no promtool."""

from __future__ import annotations

import re
from collections.abc import Mapping

from common.metric_catalogue.metric import Metric

ABBREVIATED = ("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d")
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
NOT_BASE = {
    "seconds": ("minutes", "hours", "days", "weeks"),
    "bytes": ("bits",),
    "celsius": ("fahrenheit", "rankine"),
    "meters": ("inches", "yards", "miles"),
    "grams": ("pounds", "ounces"),
    "joules": ("calories",),
}
PREFIXES = ("pico", "nano", "micro", "milli", "centi", "deci", "kilo", "kibi", "mega", "mibi", "giga", "gibi", "tera",
            "tebi", "peta", "pebi")  # fmt: skip
BASES = (*NOT_BASE, "amperes", "metres", "moles", "volts")
PART = re.compile("_(?:count|sum|bucket)$")
VALUE = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ")
LABEL = re.compile(r'(\w+)="')


def name_problems(name: str) -> list[str]:
    """What is wrong with a name, whatever the kind of the metric."""
    words = name.split("_")
    found = [f"{name}: a unit is abbreviated ({word})" for word in words[1:] if word in ABBREVIATED]
    found += [f"{name}: names its type ({word})" for word in words[1:] if word in TYPES]
    for base in BASES:
        others = (*NOT_BASE.get(base, ()), *(prefix + base for prefix in PREFIXES))
        found += [f"{name}: the unit is {base}, not {word}" for word in words if word in others]
    if not re.fullmatch(r"tidelog(_[a-z0-9]+)+", name):
        found.append(f"{name}: is not tidelog_lower_case")
    if name.endswith(("_count", "_sum", "_bucket")):
        found.append(f"{name}: ends like a part of a histogram")
    return found


def problems(text: str) -> list[str]:
    """Of a whole page of metrics."""
    helps: dict[str, str] = {}
    kinds: dict[str, str] = {}
    found: list[str] = []
    for line in text.splitlines():
        words = line.split(" ", 3)
        if line.startswith("# HELP "):
            helps[words[2]] = words[3] if len(words) > 3 else ""
        elif line.startswith("# TYPE "):
            kinds[words[2]] = words[3]
        elif line:
            found += _label_problems(line, kinds)
    for name, kind in kinds.items():
        found += name_problems(name)
        if (kind == "counter") != name.endswith("_total"):
            found.append(f"{name}: a {kind}; counters and nothing else end in _total")
        if not helps.get(name, "").strip():
            found.append(f"{name}: has no help text")
    return found


def _label_problems(line: str, kinds: dict[str, str]) -> list[str]:
    sample = SAMPLE.match(line)
    name = "" if sample is None else sample[1]
    if name not in kinds and kinds.get(PART.sub("", name)) not in ("histogram", "summary"):
        return [f"{line}: belongs to no declared metric"]
    labels = LABEL.findall(line)
    return [
        f"{name}: the label {label} is {'reserved' if label in ('le', 'quantile') else 'not lower case'}"
        for label in labels
        if label != label.lower() or label in ("le", "quantile")
        if not (label == "le" and kinds.get(PART.sub("", name)) == "histogram")
    ]


def catalogue_problems(text: str, catalogue: Mapping[str, Metric]) -> list[str]:
    """Where a page differs from the catalogue: in names, in labels, in how many values a label has."""
    found: dict[str, None] = {}
    values: dict[tuple[str, str], set[str]] = {}
    for line in text.splitlines():
        sample = None if line.startswith("#") else SAMPLE.match(line)
        if sample is None:
            continue
        metric = catalogue.get(sample[1]) or catalogue.get(PART.sub("", sample[1]))
        if metric is None:
            found[f"{sample[1]}: is not in the catalogue"] = None
            continue
        labels = dict(VALUE.findall(sample[2] or ""))
        labels.pop("le", None)
        declared = {label.name for label in metric.labels}
        if not declared <= labels.keys() or (declared != labels.keys() and not metric.own_labels):
            found[f"{metric.name}: has the labels {sorted(labels)}, and is declared with {sorted(declared)}"] = None
        for label, value in labels.items():
            values.setdefault((metric.name, label), set()).add(value)
    for metric in catalogue.values():
        for label in metric.labels:
            count = len(values.get((metric.name, label.name), ()))
            if count > label.values:
                found[f"{metric.name}: {count} values of {label.name}, at most {label.values} are declared"] = None
    return list(found)
