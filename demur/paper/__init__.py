"""The paper as data: its grid, its recipes, what it printed, what it claims."""
