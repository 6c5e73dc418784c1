"""Placement of replicas when a broker is emptied."""
