"""The typed API: several sinks behind one logger, and adapters to destinations."""
