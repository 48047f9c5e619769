"""What a training loop tells its loggers: state, time, events, levels."""
