"""How gateways, controller and workers reach each other: framed messages over stream sockets of our own.

One thread owns a `hub.Hub`, which waits for all of its sockets at once; a message costs one wake-up. What is
in a message is `messages`' affair: here it is bytes, and tensors beside them.
"""
