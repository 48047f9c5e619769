"""Method names of earlier versions of Composer."""
