"""`tidelog spark erase`: records with given keys leave the tier, and a proof says so."""
