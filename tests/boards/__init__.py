"""Boards and alarms: what they are made from, and that what is made is sound."""
