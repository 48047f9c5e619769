"""What a training loop passes to its loggers: state, timestamp, events, levels, settings."""
