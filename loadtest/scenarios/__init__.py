"""Overload in virtual time: one table of scenarios, played with the controller that is shipped and
with the best limit that never changes. `python -m loadtest.scenarios` prints what came of it."""
