"""Where endpoints are, when they come and go."""
