"""The command that measures the theorem's constants on a run."""
