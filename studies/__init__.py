"""What is built with fedssd and does not come with it."""
