"""Sets of torch.distributed.checkpoint. Importing this loads no torch; its classes do, at their first use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
