"""Tests of tiering."""
