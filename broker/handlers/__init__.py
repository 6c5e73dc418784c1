"""One file per API family, from decoded request to response."""
