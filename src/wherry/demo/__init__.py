"""``wherry demo``: a model trains, its trainer is killed, and a second run goes on from the store."""
