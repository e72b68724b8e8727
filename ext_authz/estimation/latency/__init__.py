"""How long requests wait and run: cold formulas, learned shapes, quantiles."""
