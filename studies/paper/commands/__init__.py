"""The commands of the study, a module each."""

PROGRAM = "python -m studies.paper run"  # as messages name it
