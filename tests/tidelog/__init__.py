"""Tests of tidelog."""
