"""Who makes the requests of the stores in a test: our own client, or the vendor's library."""

#: Storage options that say so. The fixture `way` sets them.
WAY: dict[str, object] = {}
