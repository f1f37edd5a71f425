"""What takes how long, beside what a user would otherwise have."""
