"""Files of a run on disk: JSON Lines, Parquet, media; and the lock of their folder."""
