"""Spark jobs as commands run them."""
