"""fedssd: federated learning on non-IID data without forgetting."""

__version__ = "0.1.0"
