"""One gate before each API's handler: it removes what the client has no right to, and answers that itself."""
