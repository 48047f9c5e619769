"""The page of `wherry ui`: runs, curves, media, logs, checkpoints and uploads, straight from where they are stored. Read-only."""
