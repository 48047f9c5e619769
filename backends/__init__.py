"""The backends. Each module keeps one kind of store and imports the contract and its own vendor library, nothing else:
`wherry.store`, `wherry.errors`, `wherry.uri`; never another layer, never another backend. They are found by URI scheme
through `wherry.store.registry`; only tests import them by name.
"""
