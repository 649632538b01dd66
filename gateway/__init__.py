"""The gateway's process: clients and their tensors on one side, the controller and the workers on the other.

* ``core``       -- the request table: exactly one reply for each request, whatever dies
* ``table``, ``pending``, ``answers``, ``refusals``, ``bounds``, ``catalog``, ``validation``, ``admin``,
  ``session``, ``sends`` -- the table's parts, pure like it
* ``cache``      -- outputs that were computed before for the same inputs; ``sharing``: equal requests that
  wait at one time; pure
* ``observers``  -- who is told of each request that ends: ``statistics``, and ``tracing``, whose traces
  ``otlp`` sends away
* ``driver``      -- the table wired to controller and workers, for any front end; ``links``: its ends
* ``zeromq``     -- the front end for Mainspring's own clients; ``backlog`` and ``multipart`` are its parts
* ``server``     -- one thread, one wait for all sockets; the process's life
* ``metrics/``   -- what Prometheus scrapes
* ``config``     -- the process's configuration

It keeps a request's tensors until its reply is out, and decides nothing about where or when.
"""
