"""Who a connection belongs to, and what they may do: SASL, principals, the authorizer."""
