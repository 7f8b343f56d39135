"""A run on disk: its folder, its checkpoints, and the loop that writes both."""
