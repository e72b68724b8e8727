"""Shared harness of the tests that start real servers."""
