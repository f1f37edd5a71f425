"""Outside the package: causes, agreement, kills, fuzz, mutants."""
