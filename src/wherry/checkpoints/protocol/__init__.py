"""What a checkpoint set is in the bucket: names, receipts, manifests, attempts, and how a set is committed.

For agents, who write receipts and manifests, and for readers. Everything here is a function of the store; nothing is kept.
"""
