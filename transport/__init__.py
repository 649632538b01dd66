"""The connections between a cluster's processes: framed messages over stream sockets.

One thread owns a `hub.Hub`, which waits for all of its sockets at once; a message costs one wake-up. What is
in a message is `messages`' affair: here it is bytes, and tensors beside them.
"""
