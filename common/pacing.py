"""Long work in slices, so that no callback holds a node's event loop, whatever a client sends.

Work is a generator. It yields the cost of its steps since the last yield, and returns its result. The pacer runs it
until a slice is used up, and goes on in a later turn of the loop. One slice runs per turn; between slices the loop
serves its sockets. Works of one lane run one after another, and lanes take turns. The node's own lanes together
alternate with all clients' lanes, so that many clients cannot starve an election.

When other processes want the processor too, clients' work pauses after each slice (`Strain`). Otherwise a record that
passes three brokers on one machine would wait for a slice in each. The node learns that they want it by offering it to
them after a slice, because the kernel alone may let them wait for several milliseconds.

Costs are counted instead of measured, in units of about a microsecond of CPU on a slow core. So the simulator slices
as production does, and a test can bound a slice without a clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

Work = Generator[int, None, T]

SLICE_COST = 1_000  # units; a work should yield several times per slice
INLINE_COST = 4_000  # what works may use without waiting in one turn of the loop
CLIENTS_SHARE = 3  # clients' slices are shorter by this factor, because other clients wait for each of them
STRAINED_S = 0.01  # how long after a preemption the processor counts as wanted by others
OFFERED_MAX_S = 0.0015  # others that keep an offered processor for longer want it for KEPT_S ...
KEPT_S = 0.1  # ... without a further offer, because this node serves nothing during an offer
REST_SHARE = 4  # rests are longer than the work before them by this factor, within the bounds below
REST_MIN_S, REST_MAX_S = 0.001, 0.01
REST_FROM_S = REST_MIN_S / 2  # shorter rests are owed until they add up
UNCOUNTED_COST = 20  # of a work that ends before its first yield


class Lane(NamedTuple):
    """One of several lanes that share their group's turns, such as the connections of one client."""

    group: Hashable
    member: Hashable


def at_once(work: Work[T]) -> T:
    """Run short `work` to its end and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class Strain:
    """Whether other processes want the processor, and how long clients' work rests for them.

    `displaced` returns how often the kernel preempted this thread, and `offer` lets others run first. While others want
    the processor, clients' work has about a fifth of the time, and never less than a tenth.
    """

    __slots__ = ("_began", "_clock", "_displaced", "_looked", "_offer", "_owed_s", "_seen", "_until", "worked_s")

    def __init__(self, clock: Callable[[], float], displaced: Callable[[], int], offer: Callable[[], None]) -> None:
        self._clock = clock
        self._displaced = displaced
        self._offer = offer
        self._seen = displaced()
        self._looked = clock()
        self._began = 0.0
        self._until = float("-inf")
        self._owed_s = 0.0
        self.worked_s = 0.0  # seconds of clients' work since the start

    def begin(self) -> None:
        """Note that clients' work begins or continues."""
        self._began = now = self._clock()
        if now >= max(self._looked + STRAINED_S, self._until):  # earlier preemptions say nothing about now
            self._seen, self._looked = self._displaced(), now

    def end(self) -> float:
        """Note that clients' work pauses or has ended; return the seconds since it began or went on."""
        now = self._clock()
        self.worked_s += now - self._began
        if now >= self._until:  # before, others run during the rests
            self._look(now)
        is_wanted = now < self._until
        self._owed_s = min(self._owed_s + REST_SHARE * (now - self._began), REST_MAX_S) if is_wanted else 0.0
        return now - self._began

    def _look(self, now: float) -> None:
        self._offer()
        seen, self._looked = self._displaced(), self._clock()
        if seen != self._seen:
            kept = self._looked - now > OFFERED_MAX_S
            self._seen, self._until = seen, self._looked + (KEPT_S if kept else STRAINED_S)

    def rest_s(self) -> float:
        """Seconds that clients' work rests now; 0 when no other process wants the processor, or little is owed."""
        owed_s = self._owed_s
        if owed_s < REST_FROM_S:
            return 0.0
        self._owed_s = 0.0
        return max(owed_s, REST_MIN_S)


class _Job(Generic[T]):
    __slots__ = ("done", "work")

    def __init__(self, work: Work[T], done: asyncio.Future[T]) -> None:
        self.work = work
        self.done = done


_Lanes = dict[Hashable, dict[Hashable, deque[_Job[Any]]]]


class Pacer:
    """One per node and event loop; make it while that loop runs. Idle, it costs nothing."""

    def __init__(
        self, slice_cost: int = SLICE_COST, inline_cost: int = INLINE_COST, strain: Strain | None = None
    ) -> None:
        self._strain = strain
        self._resting = False  # whether clients' work rests until a timer fires
        self._has_rested = False  # and now a slice of it comes before the next rest, if one waits
        self._loop = asyncio.get_running_loop()
        self._slice_cost = slice_cost
        self._inline_cost = inline_cost
        self._inline_left = inline_cost
        self._inline_used = False
        self._own: _Lanes = {}
        self._clients: _Lanes = {}
        self._own_is_next = True
        self._scheduled = False
        self._last_cost = 0
        self.slices = 0  # run since the start
        self.costliest = 0  # units of the costliest slice since the start
        self._spent: Callable[[Hashable, float], None] | None = None

    def tell(self, spent: Callable[[Hashable, float], None]) -> None:
        """Call `spent` with the group of a client's lane, and for how many seconds its work has held the loop.

        That is the time of its slices, and of the steps between them of what is `metered`. A pacer without a `Strain`
        has no clock and never calls it.
        """
        self._spent = spent

    @property
    def clients_worked_s(self) -> float:
        """Seconds of clients' long work since the start, which rests are measured by; 0 without a strain."""
        return 0.0 if self._strain is None else self._strain.worked_s

    def start(self, work: Work[T], lane: Hashable = None, *, own: bool = False) -> T | Awaitable[T]:
        """The result at once when `work` ends within its first slice and nothing of its kind waits; else a future.

        `lane` is what the work is done for: a connection, a tenant, a duty's name. Lanes of one group share its turns
        (`Lane`). `own` marks the node's own work. An exception of the work is raised here or by the future. Cancelling
        the future ends the work.
        """
        lanes = self._own if own else self._clients
        if not lanes and self._inline_left > 0:
            self._note_inline_use()
            try:
                self._slice(work, self._slice_cost)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._inline_left -= max(self._last_cost, UNCOUNTED_COST)
        job = _Job(work, self._loop.create_future())
        group, member = lane if isinstance(lane, Lane) else (lane, None)
        lanes.setdefault(group, {}).setdefault(member, deque()).append(job)
        self._schedule()
        return job.done

    async def run(self, work: Work[T], lane: Hashable = None, *, own: bool = False) -> T:
        """The result of `work`. Cancelling the caller ends the work."""
        outcome = self.start(work, lane, own=own)
        if isinstance(outcome, asyncio.Future):
            result: T = await outcome
            return result
        return outcome  # type: ignore[return-value]  # an awaitable that is no future is the work's own result

    async def metered(self, work: Awaitable[T], group: Hashable = None) -> T:
        """Return the result of `work`. Its steps between slices count as clients' work too, so rests follow them.

        `group` is that of the client's lane, None for what is no client's.
        """
        if self._strain is None:
            return await work
        return await _Metered(work, self._strain, lambda seconds: self._stepped(group, seconds))

    def _stepped(self, group: Hashable, seconds: float) -> None:
        if self._spent is not None and group is not None:
            self._spent(group, seconds)
        self._rest()

    async def rest(self, lane: Hashable = None, *, own: bool = True) -> None:
        """Wait for the lane's turn, in a coroutine that does a slice of work between two rests."""
        await self.run(_nothing(), lane, own=own)

    def admits(self, cost: int) -> bool:
        """Whether short work of about `cost` may run at once in this turn, beside paced work; counts it if so."""
        if self._inline_left <= 0:
            return False
        self._note_inline_use()
        self._inline_left -= cost
        return True

    def _note_inline_use(self) -> None:
        if not self._inline_used:
            self._inline_used = True
            self._loop.call_soon(self._new_turn)

    def _new_turn(self) -> None:
        self._inline_used = False
        self._inline_left = self._inline_cost

    def _slice(self, work: Work[Any], limit: int) -> None:
        """Run one slice. Raises StopIteration at the end of the work, or the work's exception."""
        spent, step = 0, work.__next__
        self.slices += 1
        try:
            while spent < limit:
                spent += step()
        finally:
            self._last_cost = spent
            self.costliest = max(self.costliest, spent)

    def _schedule(self) -> None:
        if not self._scheduled and (self._own or (self._clients and not self._resting)):
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run one slice of the lane whose turn it is."""
        clients = bool(self._clients) and not self._resting
        own = self._own_is_next if self._own and clients else bool(self._own)
        self._own_is_next = not own
        if own:
            self._serve(self._own, next(iter(self._own)))
        elif clients:
            self._serve_clients()
        self._scheduled = False
        self._schedule()

    def _serve_clients(self) -> None:
        strain, group = self._strain, next(iter(self._clients))
        self._has_rested = False
        if strain is not None:
            strain.begin()
        self._serve(self._clients, group)
        if strain is not None:
            self._stepped(group, strain.end())

    def _rest(self) -> None:
        """Have clients' work rest for as long as it owes."""
        if self._resting or self._strain is None or (self._has_rested and self._clients):
            return
        if rest_s := self._strain.rest_s():
            self._resting = True
            self._loop.call_later(rest_s, self._rested)

    def _rested(self) -> None:
        self._resting, self._has_rested = False, True  # else steps between slices could put off the slices for ever
        self._rest()  # for steps that were taken meanwhile
        self._schedule()

    def _serve(self, lanes: _Lanes, group: Hashable) -> None:
        limit = self._slice_cost if lanes is self._own else max(self._slice_cost // CLIENTS_SHARE, 1)
        members = lanes[group]  # stays in `lanes` meanwhile, because the work may start more
        member = next(iter(members))
        jobs = members[member]
        job = jobs[0]
        if job.done.done():  # cancelled
            job.work.close()
            jobs.popleft()
        else:
            try:
                self._slice(job.work, limit)
            except StopIteration as end:
                jobs.popleft()
                if not job.done.done():
                    job.done.set_result(end.value)
            except Exception as error:
                jobs.popleft()
                if not job.done.done():
                    job.done.set_exception(error)
        del members[member], lanes[group]
        if jobs:
            members[member] = jobs
        if members:
            lanes[group] = members


class _Metered(Generic[T]):
    """Awaits `work`, reports each of its steps to `strain` as clients' work, and calls `ended` with its seconds."""

    __slots__ = ("_ended", "_strain", "_work")

    def __init__(self, work: Awaitable[T], strain: Strain, ended: Callable[[float], None]) -> None:
        self._work = work
        self._strain = strain
        self._ended = ended

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Any = self._work.__await__()
        step, value = steps.send, None
        while True:
            self._strain.begin()
            try:
                waits_for = step(value)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._ended(self._strain.end())
            try:
                step, value = steps.send, (yield waits_for)
            except GeneratorExit:  # its task is dropped, and the work perhaps before it
                steps.close()
                raise
            except BaseException as error:  # such as a cancellation, which the work handles
                step, value = steps.throw, error


def _nothing() -> Work[None]:
    yield SLICE_COST
