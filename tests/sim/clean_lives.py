"""What must hold of brokers that only died: nothing is lost with a process."""

from __future__ import annotations

from collections.abc import Callable

from kraft.image.metadata import MetadataImage
from tests.sim.invariants import InvariantBroken


class OnlyLossesAreUnclean:
    """A broker registers as unclean only if its machine lost power, its disk failed or its files were changed since it
    registered last. Otherwise deaths of processes alone could empty a partition's ISR and ELR."""

    def __init__(self) -> None:
        self._may_lack: dict[int, None] = {}  # brokers, until they have registered
        self._failing: dict[int, None] = {}

    def may_lack_records(self, broker: int) -> None:
        """From now on an unclean registration is right."""
        self._may_lack[broker] = None

    def disk_fails(self, broker: int, fails: bool) -> None:
        self._may_lack[broker] = None
        if fails:
            self._failing[broker] = None
        else:
            self._failing.pop(broker, None)

    def moved(self, before: MetadataImage, image: MetadataImage, is_of_this_life: Callable[[int, int], bool]) -> None:
        """`is_of_this_life(broker, epoch)`: the process that runs now has registered so."""
        for number, broker in image.brokers.items():
            old = before.brokers.get(number)
            if old is None or old.epoch == broker.epoch:
                continue
            if broker.is_unclean and not old.is_unclean and number not in self._may_lack:
                raise InvariantBroken(self, f"broker {number} registers as unclean, epoch {broker.epoch}")
            if number not in self._failing and is_of_this_life(number, broker.epoch):
                self._may_lack.pop(number, None)
