"""Authentication and authorization: SASL, principals, ACLs."""
