"""How a set comes back: one download a node, once from the bucket, one outcome for all ranks (wherry.checkpoints.restore)."""
