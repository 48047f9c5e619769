"""The objects that runs are made of: opened for reading only, found in listings, kept on the disk, put together as files."""
