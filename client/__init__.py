"""The Python SDK: what a program imports to send requests and to see or change what is served.

* ``client``, ``asynchronous`` -- `Client` and `AsyncClient`, the same verbs, blocking and awaited
* ``channel``    -- many calls in flight on one connection, each with a future; the thread behind `Client`
* ``connection`` -- the layer below, for a program with a loop of its own: messages in, messages out
* ``arrays``     -- arrays to tensors on the wire and back
* ``errors``     -- why a request got no outputs, and what to do about it
* ``durations``  -- durations as people write them, for the command line

Its public names are those of the package ``mainspring``.
"""
