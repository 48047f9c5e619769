"""Object-store servers for tests and benchmarks: real ones as child processes, a strict GCS, a fault proxy, TLS.

pytest finds this package by `pythonpath` in pyproject.toml, the benchmarks by `measure.py`.
"""
