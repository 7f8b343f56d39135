"""Server halves: how stacked client uploads become the next global model."""
