"""Names and calls of earlier versions of Composer."""
