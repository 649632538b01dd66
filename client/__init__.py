"""The Python SDK: what a program imports to send requests and to see or change what is served.

* ``client``, ``asynchronous`` -- `Client` and `AsyncClient`, the same verbs, blocking and awaited
* ``channel``    -- many calls in flight on one connection; the thread behind `Client`
* ``call``, ``delivery`` -- one call, which is a future; outcomes to event loops
* ``requests``, ``outbox``, ``paths`` -- when a request is sent, what is on its way, what the way back takes
* ``connection`` -- the layer below, for a program with a loop of its own: messages in, messages out
* ``arrays``, ``lists`` -- arrays and Python numbers to tensors on the wire and back
* ``catalog``, ``address`` -- the models that are served; which gateway it is
* ``timing``, ``shown`` -- where a request's time went; results as people read them
* ``errors``     -- why a request got no outputs, and what to do about it
* ``durations``  -- durations as people write them

Its public names are those of the package ``mainspring``.
"""
