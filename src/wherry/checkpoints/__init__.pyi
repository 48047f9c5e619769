# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .handle import CheckpointHandle as CheckpointHandle, RunTakenOverError as RunTakenOverError
from .preemption.preemption import PreemptionReport as PreemptionReport
from .protocol.commit import (
    IncompleteSetError as IncompleteSetError,
    SetAbandonedError as SetAbandonedError,
    SetFailedError as SetFailedError,
)
from .protocol.deletion import InUseError as InUseError
from .protocol.names import SetName as SetName
from .protocol.set_manifest import Manifest as Manifest
from .restore import DamagedSetError as DamagedSetError, PrunedWhileRestoringError as PrunedWhileRestoringError
from .restoring.together import OtherRankFailedError as OtherRankFailedError
from .world import World as World
