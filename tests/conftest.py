"""Being here puts the repository's root on the import path, for `tests.support` and `loadtest`."""
