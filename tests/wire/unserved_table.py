"""README's table of what is not served: `python -m tests.wire.unserved_table` prints it."""

from __future__ import annotations

from wire import unserved
from wire.apis import ApiKey
from wire.unserved import Unserved


def table() -> str:
    features = [value for value in vars(unserved).values() if isinstance(value, Unserved)]
    apis: dict[Unserved, list[str]] = {feature: [] for feature in features}
    for key in ApiKey:
        if key.unserved is not None:
            apis[key.unserved].append(key.api_name)
    rows = [f"| {feature.what} | {', '.join(names)} | {feature.seen} |" for feature, names in apis.items()]
    return "\n".join(["| what | APIs | what clients see |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
