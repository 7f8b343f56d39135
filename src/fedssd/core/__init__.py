"""The contract every engine runs; it imports torch and nothing else of ours."""
