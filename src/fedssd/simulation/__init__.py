"""One run in memory: from a recipe to rounds. No path, no file, no signal."""
