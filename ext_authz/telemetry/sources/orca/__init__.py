"""Load reports of the ORCA kind, in headers and streams."""
