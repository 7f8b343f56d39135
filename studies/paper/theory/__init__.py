"""The constants of Theorem 1, measured on a run."""
