"""Many runs: as recipes, in which order and where, and which are finished already."""
