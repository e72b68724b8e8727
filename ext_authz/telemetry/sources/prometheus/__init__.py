"""A Prometheus server as a source: engines, DCGM cards, mapped queries."""
