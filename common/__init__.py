"""Code that at least two packages need, and nothing else."""
