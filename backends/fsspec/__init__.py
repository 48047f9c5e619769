"""Any file system that fsspec knows."""
