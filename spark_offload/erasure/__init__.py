"""`tidelog spark erase`: removes records with given keys from the tier, and proves it."""
