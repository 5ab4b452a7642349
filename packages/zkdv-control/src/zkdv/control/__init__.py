"""The control plane of a run over several processes: one owner decides, and every rank gets the decision.

    import zkdv.control

    control = zkdv.control.HostControl.for_backend("jax")     # None when there is one process
    seed = control.exchange("seed", 42)                       # the owner's value, on every rank
    control.close()

No framework is imported here; what carries the rounds is a transport, found in the plugin registry by its name.
"""

from zkdv.control._host_control import HostControl
from zkdv.control._store_transport import StoreTransport
from zkdv.control.tcp import Tcp

__all__ = ["HostControl", "StoreTransport", "Tcp"]
