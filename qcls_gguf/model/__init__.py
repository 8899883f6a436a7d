"""Which file: the hub, its identity, its header and its output rows."""
