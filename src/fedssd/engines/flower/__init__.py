"""Real clients on real machines, over Flower: what travels, what a node remembers, and the server's strategy.

Only ``library`` imports flwr, and nothing outside this package and ``fedssd.deployment`` imports ``library``.
"""
