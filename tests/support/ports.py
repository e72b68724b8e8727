"""Free loopback ports."""

from loadtest.processes import free_port

__all__ = ["free_port"]
