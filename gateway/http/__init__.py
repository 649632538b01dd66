"""The Open Inference Protocol over HTTP, in the gateway's own event loop.

* ``server``     -- the listening socket, its connections and their number
* ``connection`` -- one client: requests in, replies out in their order, nothing without a bound
* ``host``       -- what a connection needs of the server
* ``receiver``   -- bytes to requests; a large body goes from the socket to the memory that it stays in
* ``exchange``, ``wire`` -- one request and its reply; heads of replies as bytes
* ``watch``      -- looks after connections that take too long
* ``routes``, ``table`` -- what stands at which path
* ``infer``      -- inference; ``control``, ``extensions``: all the rest
* ``openapi``    -- the description of all this that the server gives

The parser is httptools'. There is no framework between it and the request table: a request makes no task, and
its tensors are not copied (docs/http.md counts).
"""
