"""sink.c in Python, for machines without a C compiler: the same answers, which cost it more."""
