"""Recorded traffic played again, in the time that it tells."""
