"""Tests of the Kafka protocol room."""
