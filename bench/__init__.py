"""Measurements and demonstrations over running clusters."""
