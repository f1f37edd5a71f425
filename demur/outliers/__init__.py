"""What a network is shown as "none of these", and what makes it easy to tell."""
