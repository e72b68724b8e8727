"""Metrics pages: text to samples in the terms of an engine."""
