"""What waits at one broker, for transaction coordinators or for inspection, and the part of it that each tenant has."""

from __future__ import annotations

from typing import NamedTuple


class _Held(NamedTuple):
    questions: int
    size: int


_NOTHING = _Held(0, 0)


class WaitingShare:
    """Counts of questions, and sizes of what waits for their answers. Without questions, sizes alone.

    A tenant holds at most as much as is left to all others. So one alone has half, several have equal parts, and as
    much is always left for who comes next. The operators' own clients may have all.
    """

    def __init__(self) -> None:
        self._all = _NOTHING
        self._of_tenant: dict[str, _Held] = {}

    @property
    def size(self) -> int:
        return self._all.size

    def admits(self, tenant: str | None, questions: int, size: int, questions_max: int, size_max: int) -> bool:
        """Whether so much may be added. The first of all, and of a tenant, may be larger than its part."""
        held = self._all if tenant is None else self._of_tenant.get(tenant, _NOTHING)
        after = _Held(self._all.questions + questions, self._all.size + size)
        if (questions and after.questions > questions_max) or (self._all.size and after.size > size_max):
            return False
        if tenant is None or held == _NOTHING:
            return True
        is_many = questions and held.questions + questions > questions_max - after.questions
        return not is_many and held.size + size <= size_max - after.size

    def add(self, tenant: str | None, questions: int, size: int) -> None:
        """More waits, or less if negative."""
        self._all = _Held(self._all.questions + questions, self._all.size + size)
        if tenant is None:
            return
        held = self._of_tenant.get(tenant, _NOTHING)
        after = _Held(held.questions + questions, held.size + size)
        if after == _NOTHING:
            self._of_tenant.pop(tenant, None)
        else:
            self._of_tenant[tenant] = after
