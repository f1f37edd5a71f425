"""From bytes to tensors: data sets by name, in files, on disk and at a hub."""
