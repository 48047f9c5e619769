"""``python -m python_sink PORT [CERTIFICATE KEY]``: it prints its ports (the second for TLS), and ends when stdin does."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
from contextlib import suppress

from python_sink import gcs, s3
from python_sink.objects import Objects
from python_sink.peer import Exchange, HungUp, Peer


def serve(connection: socket.socket, context: ssl.SSLContext | None, objects: Objects) -> None:
    """All requests of one connection."""
    with suppress(HungUp, OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            peer = Peer(connection, objects)
            while True:
                serve_one(peer, objects)


def serve_one(peer: Peer, objects: Objects) -> None:
    request = peer.request()
    if request.path == "/_sink/bytes":
        peer.answer("200 OK", body=f"{objects.n_received} {objects.n_sent}".encode())
    elif request.path == "/_sink/forget":
        objects.forget()
        peer.answer("200 OK")
    elif request.path.startswith(gcs.PREFIXES) and not request.is_in_chunks:
        gcs.serve(Exchange(peer, request, objects))
    else:
        s3.serve(Exchange(peer, request, objects))


def welcome(listening: socket.socket, context: ssl.SSLContext | None, objects: Objects) -> None:
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=serve, args=(connection, context, objects), daemon=True).start()


def main() -> None:
    port, *certificate = sys.argv[1:]
    objects = Objects()
    doors: list[tuple[socket.socket, ssl.SSLContext | None]] = []
    doors.append((socket.create_server(("127.0.0.1", int(port)), backlog=128), None))
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        doors.append((socket.create_server(("127.0.0.1", 0), backlog=128), context))
    print(*(listening.getsockname()[1] for listening, _ in doors), flush=True)
    for door in doors:
        threading.Thread(target=welcome, args=(*door, objects), daemon=True).start()
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main()
