"""What outlives a process: what was learned, in a file."""
