"""The reading side of a mirror: listings, copies, checks, and sealing without the folder."""
