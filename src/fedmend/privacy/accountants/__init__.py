"""What noise and sampling are worth: one accountant, one file."""
