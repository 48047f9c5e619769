"""The metrics of a run as columns: from lines, from Parquet, and joined to series."""
