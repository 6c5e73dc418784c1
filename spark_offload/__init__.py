"""Spark jobs over the tier. Built by a later step; empty until then."""
