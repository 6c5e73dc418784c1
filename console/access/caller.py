"""Runs a session's questions in threads: few at a time for each user or tenant and for all, none beyond a time limit.

The client of the library blocks, so it never runs on the console's loop. A thread cannot be stopped; its requests end
by their own timeouts, and its place is free only then. So brokers that are silent cost each user or tenant a few
threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from console.access.answers import Answers
from console.access.trouble import EXPECTED, Trouble, trouble_of
from tidelog.admin.library_client import AdminClient

THREADS_MAX = 12
OF_AN_OWNER_MAX = 4
ANSWER_S = 25.0
WAIT_S = 10.0
AGAIN_S = 0.3

T = TypeVar("T")
Question = Callable[[AdminClient], T]


class Places:
    """How many questions run at once. The sessions of a tenant or a user share theirs, so that none of them keeps all
    threads from the others."""

    def __init__(self) -> None:
        self._shared: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, owner: str) -> asyncio.Semaphore:
        """`owner`: see `Entry`; an empty one shares with no one."""
        found = self._shared.get(owner)
        if found is None:
            found = asyncio.Semaphore(OF_AN_OWNER_MAX)
            if owner:
                self._shared[owner] = found
        return found


class Caller:
    """One session's way to the cluster. `client` is used by its threads alone."""

    def __init__(
        self, client: AdminClient, threads: ThreadPoolExecutor, answers: Answers, places: asyncio.Semaphore
    ) -> None:
        self._client = client
        self._threads = threads
        self.answers = answers
        self._places = places
        self._is_closed = False

    async def ask(
        self,
        question: Question[T],
        *,
        key: Hashable = None,
        fresh_s: float = 0.0,
        stale_s: float = 0.0,
        is_patient: bool = False,
    ) -> T:
        """What `question` returns for the session's client. Raises Trouble.

        With `key` the answer is kept for `fresh_s`, and shared; see `Answers.get`. A question changes nothing, so it
        is asked once more after an error that may pass.
        """

        async def asked() -> T:
            try:
                return await self._run(question)
            except Trouble as error:
                if not error.is_passing:
                    raise
            await asyncio.sleep(AGAIN_S)
            return await self._run(question)

        return (
            await asked()
            if key is None
            else await self.answers.get(key, fresh_s, asked, stale_s=stale_s, is_patient=is_patient)
        )

    async def act(self, change: Question[T]) -> T:
        """Like `ask`, for what changes the cluster: tried once, and kept answers are forgotten. Raises Trouble."""
        try:
            return await self._run(change)
        finally:
            self.answers.forget()

    def close(self) -> None:
        """The client's connections end once its questions have; no question is taken any more."""
        if not self._is_closed:
            self._is_closed = True
            self.answers.forget()
            self._threads.submit(_closed, self._client)

    async def _run(self, question: Question[T]) -> T:
        if self._is_closed:
            raise Trouble("the session has ended")
        try:
            await asyncio.wait_for(self._places.acquire(), WAIT_S)
        except TimeoutError:
            raise Trouble("your other questions are not answered yet; try again", is_passing=False) from None
        running = asyncio.get_running_loop().run_in_executor(self._threads, question, self._client)
        running.add_done_callback(self._ended)
        try:
            return await asyncio.wait_for(asyncio.shield(running), ANSWER_S)
        except TimeoutError:
            raise Trouble(f"the brokers have not answered within {ANSWER_S:g} s") from None
        except EXPECTED as error:
            raise trouble_of(error) from error

    def _ended(self, running: asyncio.Future[T]) -> None:
        self._places.release()
        if not running.cancelled():
            running.exception()  # of a question that is waited for no longer


def _closed(client: AdminClient) -> None:
    try:
        client.close()
    except EXPECTED:
        return
