"""wherry ferries files between a training job and an object store: whole, verified, exactly once, without slowing training.

    with wherry.Uploader("s3://bucket/run1") as uploader:
        uploader.put("checkpoint.pt", "ep1.pt")       # returns at once; the upload survives kill -9
        uploader.get("ep1.pt", "restored.pt")         # at once too, from the spool while it is queued

Loggers for a training loop are in `wherry.loggers`, tools for tests of your own in `wherry.testing`.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
