"""What a Check costs: see `__main__`. Not tests: nothing here passes or fails by time."""
