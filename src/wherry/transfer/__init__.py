"""Bytes on their way: uploads, downloads, and what an interrupted one leaves."""
