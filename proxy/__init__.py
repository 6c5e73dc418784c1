"""The stateless proxy that routes by TLS server name. Built by a later step; empty until then."""
