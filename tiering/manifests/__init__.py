"""Manifests: a partition's tiered segments, published in the bucket for readers without a broker."""
