"""One gate before each API's handler: it takes out what the sender may not have, and answers that itself."""
