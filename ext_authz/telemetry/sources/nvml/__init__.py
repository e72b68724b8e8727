"""This host's cards, through the driver's library."""
