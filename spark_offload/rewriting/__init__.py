"""Batches without some of their records, and segments made of them; what compaction and erasure share."""
