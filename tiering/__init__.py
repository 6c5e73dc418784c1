"""Copying closed segments to the object store and reading them back. Built by a later step; empty until then."""
