"""One run, many runs, and what is read from their folders."""
