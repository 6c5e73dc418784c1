"""PySyncObj made safe: journal, transport, message filter, snapshots."""
