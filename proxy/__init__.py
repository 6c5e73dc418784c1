"""The TLS proxy: many tenants behind one port, routed by the server name of their ClientHello."""
