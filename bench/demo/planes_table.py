"""The exported table of planes, read by pyiceberg and by nothing of this repository: a row of JSON for each plane.

Arguments: the catalog's SQLite file, the warehouse's URI, the table's name. The last record of each key counts.
"""

import json
import sys
from typing import Any

from pyiceberg.catalog import load_catalog


def main(catalog_file: str, warehouse: str, name: str) -> None:
    catalog = load_catalog("tidelog", type="sql", uri=f"sqlite:///{catalog_file}", warehouse=warehouse)
    rows = catalog.load_table(name).scan().to_arrow().to_pylist()
    latest: dict[bytes, dict[str, Any]] = {}
    for row in rows:
        before = latest.get(row["key"])
        if before is None or before["offset"] < row["offset"]:
            latest[row["key"]] = row
    fields = ("tailnum", "manufacturer", "model", "seats", "flights", "miles", "month", "last_route")
    fleet = [{field: row[field] for field in fields} for row in latest.values() if not row["tombstone"]]
    print(json.dumps([{"records": len(rows), "fleet": fleet}]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
