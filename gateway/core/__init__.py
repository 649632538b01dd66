"""The gateway's pure core: exactly one reply for each request, whatever dies.

* ``state_machine``  -- what happens to a request, event by event; what follows comes out as ``effects``
* ``request_table``  -- requests without an answer, their timers, and the bounds on them
* ``requests``       -- one request, from its arrival to its reply
* ``sharing``        -- requests of equal inputs that wait at one time share one execution
* ``cache``          -- outputs that were computed before for the same inputs
* ``catalog``, ``validation`` -- which models and workers there are; a request against its model's signature
* ``admin``          -- administrative requests on their way to the controller and back

No clock, socket, thread or file: instants are arguments. `gateway.driver` drives the core on real sockets,
the simulator drives it in virtual time.
"""
