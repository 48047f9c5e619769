"""What a mirror keeps in the bucket: names, manifests and rules, for its writer and its readers."""
