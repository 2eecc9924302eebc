"""The page: packing a trace for it, the server, notebooks."""
