"""Tables and figures, from predictions."""
