"""The paper as data, and what runs it."""
