"""The closed vocabularies of Mainspring: what processes say to each other, and how it is encoded.

One file for each subject:

* ``codes``    -- why a request was refused (`Reason`) and how an action ended (`Status`)
* ``model``    -- what everyone needs to know of a model (`ModelSpec`)
* ``events``   -- what goes into the scheduler
* ``actions``  -- what a worker is told to do, and its one `Result` for each
* ``commands`` -- what comes out of the scheduler
* ``ids``      -- the layout of a request's id
* ``peers``    -- gateway and worker to controller and to each other
* ``readiness`` -- what can be served, and why not, as gateways hear it
* ``sharding`` -- which of several controllers has which model
* ``clients``  -- client to gateway
* ``metrics``  -- what the controller counts for Prometheus
* ``observing`` -- controller to observers: the event stream, live
* ``operating`` -- what operators may ask for, and the answer
* ``scaling`` -- providers of workers to and from the controller, and what the scheduler decides of them
* ``durations`` -- a duration in words, as refusals have it
* ``codec``    -- bytes to messages and back

Every message is a frozen, tagged ``msgspec.Struct`` encoded as a MessagePack map. Times are ``int``
nanoseconds; a field named ``*_ns`` without "left" or "duration" in its name is an instant on the
controller's monotonic clock unless its docstring says otherwise.
"""

PROTOCOL_VERSION = 1
"""Version of every conversation; peers that differ are refused when they connect."""
