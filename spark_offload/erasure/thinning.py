"""One segment without the records of the erased keys: bytes of batches in, bytes of batches out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_offload.erasure.key_digests import KeyMatcher
from spark_offload.erasure.survivors import erased_records
from spark_offload.options import INFLATED_BYTES_MAX
from spark_offload.rewriting.rewriter import BatchPlan, Choice, Rewritten, rewrite
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.payload import Payload
from spark_offload.segments.record_table import RecordTable


@dataclass(slots=True)
class ErasedKeys:
    """Chooses the remaining records."""

    matcher: KeyMatcher

    def __call__(self, payload: Payload, records: RecordTable) -> Choice:
        erased, _ = erased_records(self.matcher, payload, records)
        return Choice(~erased)


def thin(
    view: memoryview, batches: BatchTable, matcher: KeyMatcher, *, inflated_bytes_max: int = INFLATED_BYTES_MAX
) -> Rewritten:
    """What is left of `batches`, which were scanned in `view`. DamagedRecords when one cannot be read.

    A batch that loses all its records stays as an empty one, so that the log keeps its offsets, sequences and
    producers without any byte of a record. Compaction removes such batches as soon as they may go.
    """
    stay: Flags = np.ones(len(batches), np.bool_)
    plan = BatchPlan.of_data(batches, stay)
    return rewrite(view, batches, plan, ErasedKeys(matcher), inflated_bytes_max=inflated_bytes_max)
