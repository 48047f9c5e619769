"""What goes wrong between a request and its answer. An answer of any status is no error here."""


class WireError(Exception):
    """No answer came, or none that can be trusted. The connection is closed."""


class ConnectError(WireError):
    """No connection was made: to the server, or through the proxy."""


class ProxyLoginError(ConnectError):
    """The proxy wants a user and a password, or other ones (407)."""


class TLSError(WireError):
    """TLS was not agreed upon; the text is OpenSSL's. Nothing was sent."""


class StalledError(WireError):
    """Not one byte went through, in one direction, for the time-out."""


class DisconnectedError(WireError):
    """The connection ended before the answer did."""

    #: No byte of an answer had come, and no more had been sent than a head and a small body: trying again costs nothing.
    is_free = False


class ProtocolError(WireError):
    """What came is no HTTP/1.1 answer, or one that two readers could understand in two ways."""


class UnknownWay(Exception):
    """The vendor's library makes requests in a way that is not known here; the text says what."""


class UnreadableFile(Exception):
    """The file to send cannot be read: the disk's fault, not the connection's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the file to send cannot be read: {error.strerror}")


class ShortFile(Exception):
    """The file to send ended before its size."""

    def __init__(self, missing_bytes: int) -> None:
        self.missing_bytes = missing_bytes
        super().__init__(f"the file to send ends {missing_bytes} bytes early: it was cut while it was sent")
