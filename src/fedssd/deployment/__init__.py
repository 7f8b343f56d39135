"""What is in ``fedssd.flower`` now, under the name that app folders of older releases import."""
