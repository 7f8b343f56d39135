"""The study of what the paper leaves open: its design, its parts as runs, what they found and what follows."""
