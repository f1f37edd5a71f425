"""A model behind HTTP: requests gathered into batches, a page to look with, and a watch over what arrives."""
