"""The writing side of a mirror: from a folder that grows to objects in a store."""
