"""Everything that can tell the state of endpoints and devices."""
