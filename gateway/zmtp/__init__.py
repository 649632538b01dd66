"""The server's side of ZeroMQ's stream protocol, ZMTP 3.0 and 3.1 (RFC 23 and 37), with bounds on everything.

libzmq takes in a whole message, of any number of frames, before a program sees the first of them. Here a
peer's message is bounded in bytes, parts and time before anything of it is kept, and a peer that has not said
who it is may send far less. `wire` is the protocol's vocabulary as bytes, `receiver` its state machine
without a socket, `connection` one socket, `listener` all of them.
"""
