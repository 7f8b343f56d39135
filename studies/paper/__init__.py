"""The FedSSD paper: its tables and figures run again, and a study of what it leaves open."""
