"""One replica's log: its segments, its tail, how it grows, shortens and becomes durable."""
