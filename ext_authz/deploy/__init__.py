"""From settings to the configuration of the proxies in front of us."""
