"""A proof that what the tier holds is whole: `job.run` reads it, checks everything and reports what is wrong."""
