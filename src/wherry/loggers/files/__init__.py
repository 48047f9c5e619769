"""Files of a run on disk: JSON Lines, Parquet, media, and who may write them."""
