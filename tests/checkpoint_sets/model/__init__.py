"""A model of the protocol of checkpoint sets: its own functions, request by request, in every order that is asked for.

`stage`: actors, of whom one makes one request at a time, and the choices that decide which; `world`: what ranks, committers,
pruners and readers do; `judge`: what must hold after each request; `search`: many histories, all of a small world, and the
shortest bad one; `copies` and `faults`: the protocol with one step replaced, which the search has to find.
"""
