"""A small pool as words, streams and bytes: the system that `vmmref_models.explore` searches."""
