"""What is drawn: the points of curves, bands of groups, colours of runs, and pictures that need no script."""
