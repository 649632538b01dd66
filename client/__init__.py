"""The Python SDK: what a program imports to send requests and to see or change what is served.

* ``client``, ``asynchronous`` -- `Client` and `AsyncClient`, the same verbs, blocking and awaited
* ``channel``    -- many calls in flight on one connection; the thread behind `Client`
* ``requests``   -- a call, which is a future; when a request is sent, or refused here
* ``outbox``, ``paths`` -- the requests that wait or are on their way; how long the way back takes
* ``connection`` -- the layer below, for a program with a loop of its own: messages in, messages out
* ``arrays``     -- arrays and Python numbers to tensors on the wire and back
* ``result``     -- a request's outputs and where its time went, also as people read them
* ``catalog``, ``address`` -- the models that are served; the gateway's address
* ``repository`` -- a model repository over a gateway's HTTP
* ``errors``     -- why a request got no outputs, and what to do about it
* ``durations``  -- durations as people write them

Its public names are those of the package ``mainspring``.
"""
