"""PURE core: what may run now. Time and chance are arguments; nothing here does I/O."""
