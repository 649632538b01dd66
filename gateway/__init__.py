"""The gateway's process: clients and their tensors on one side, the controller and the workers on the other.

* ``core/``      -- pure: the request table, validation, sharing, the cache, the catalogue
* ``driver``     -- wires the core to controller, workers and front ends; ``peer_connections``:
  its connections
* ``oip/``       -- pure: what tensors, deadlines and errors are in the Open Inference Protocol
* ``calls``      -- the seam for front ends in the gateway's own loop: ``http/``, ``grpc/``, ``metrics/``
* ``statistics``, ``tracing``, ``otlp`` -- observers of each request that ends
* ``zeromq``     -- the front end for Mainspring's own clients, on ``zmtp/``
* ``server``     -- one thread, one wait for all sockets; the process's life
* ``config``     -- the process's configuration

It keeps a request's tensors until its reply is out, and decides nothing about where or when.
"""
