"""Broken invariants are bugs: they stop the node instead of spreading (also under `python -O`)."""


class InvariantViolation(Exception):
    """Something that must always hold does not. It is never caught: the node stops."""


def check(holds: object, meaning: str) -> None:
    """Raise InvariantViolation with `meaning` unless `holds`."""
    if not holds:
        raise InvariantViolation(meaning)
