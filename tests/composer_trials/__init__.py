"""Programs that run in the environment of Composer, and that environment."""
