"""Answers proposals and erase requests in a built tier as leaders do, in a thread: jobs need no cluster then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.spark_offload.tier_builder import NOW, BuiltPartition
from tiering.jobs.proposal import EraseReady, Proposal, Verdict, decode_erase_request, decode_proposal, encode
from tiering.shard.swap import swap_complaint

LOOK_S = 0.02
Judge = Callable[[Proposal], str | None]


class PretendLeader:
    """Leads `partitions`. `judge` may refuse a proposal with a reason, and do what it likes before; partitions in
    `silent` answer no request, those in `undecided` decide nothing. The objects of accepted inputs go at once unless
    `keeps_objects`."""

    def __init__(
        self,
        partitions: list[BuiltPartition],
        *,
        judge: Judge = lambda proposal: None,
        silent: tuple[int, ...] = (),
        undecided: tuple[int, ...] = (),
        keeps_objects: bool = False,
    ) -> None:
        self.partitions = {one.path.partition: one for one in partitions}
        self.judge = judge
        self.silent = silent
        self.undecided = undecided
        self.keeps_objects = keeps_objects
        self.proposals: list[Proposal] = []
        self.failure: BaseException | None = None
        self._folder = partitions[0].root / partitions[0].tier.proposals_prefix
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._lead, daemon=True)

    def __enter__(self) -> PretendLeader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if error is None and self.failure is not None:
            raise self.failure

    def _lead(self) -> None:
        try:
            while not self._stopped.wait(LOOK_S):
                for file in sorted(self._folder.glob("*")) if self._folder.is_dir() else []:
                    if file.name.endswith(".erase"):
                        self._answer_request(file)
                    elif len(file.name) == 32:
                        self._answer_proposal(file)
        except BaseException as failure:
            self.failure = failure

    def _answer_request(self, file: Path) -> None:
        request = decode_erase_request(file.read_bytes())
        for number in request.partitions:
            answer = file.with_name(f"{request.uuid}.erase-ready-{number}")
            if number in self.silent or answer.exists():
                continue
            partition = self.partitions.get(number)
            end = partition.segments[-1].end_offset if partition is not None and partition.segments else 0
            ready = EraseReady(
                request=request.uuid,
                topic_id=request.topic_id,
                partition=number,
                tier_end_offset=end,
                log_start_offset=partition.log_start if partition is not None else 0,
                ready_ms=NOW,
                broker_id=0,
                leader_epoch=0,
            )
            _publish(answer, encode(ready))

    def _answer_proposal(self, file: Path) -> None:
        target = file.with_name(f"{file.name}.verdict")
        if target.exists():
            return
        proposal = decode_proposal(file.read_bytes())
        if proposal.partition in self.undecided:
            return
        self.proposals.append(proposal)
        reason = self.judge(proposal) or self._swap(proposal)
        verdict = Verdict(
            proposal=proposal.uuid,
            accepted=not reason,
            reason=reason or "",
            decided_ms=NOW,
            broker_id=0,
            leader_epoch=0,
        )
        _publish(target, encode(verdict))

    def _swap(self, proposal: Proposal) -> str | None:
        partition = self.partitions[proposal.partition]
        by_id = {one.id: one for one in partition.segments}
        if any(tuple(one) not in by_id for one in proposal.inputs):
            return "an input is not there any more"
        inputs = [by_id[one] for one in proposal.inputs]
        problem = swap_complaint(inputs, proposal.outputs)
        if problem is not None:
            return problem
        at = partition.segments.index(inputs[0])
        partition.segments[at : at + len(inputs)] = proposal.outputs
        partition.publish()
        if not self.keeps_objects:
            for one in inputs:
                partition.file_of(one).unlink()
        return None


def _publish(file: Path, data: bytes) -> None:
    """Whole or not at all."""
    draft = file.with_name(f"draft-{file.name}")
    draft.write_bytes(data)
    draft.rename(file)
