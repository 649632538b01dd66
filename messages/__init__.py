"""The closed vocabularies of Mainspring: what processes say to each other, and how it is encoded.

One file for each subject:

* ``codes`` -- why a request was refused (`Reason`) and how an action ended (`Status`)
* ``model`` -- what everyone needs to know of a model (`ModelSpec`)
* ``served`` -- models of a repository as clients know them
* ``sequences`` -- a model's description of its sequences, and ``sequencing``, the states that they carry
* ``curve`` -- the duration of a batch at each size of a model's symbols
* ``targets`` -- the hosts that an artifact is for
* ``events`` -- what goes into the scheduler
* ``actions`` -- what comes out of it, and the one `Result` of each action
* ``scaling`` -- providers of workers to and from the controller, and what the scheduler decides of them
* ``queries`` -- requests that become several requests under one deadline
* ``ids`` -- the layout of a request's id
* ``roles`` -- which process may send which message to which
* ``peers`` -- gateway, worker and controller to each other
* ``delays`` -- the time for which a message was held on its way
* ``sharding`` -- which of several controllers has which model
* ``clients`` -- client to gateway and back
* ``repository`` -- a gateway to the model repository's process and back
* ``readiness`` -- what can be served, and why not, as gateways hear it
* ``observing`` -- controller to observers: the event stream, live, after a ``snapshot`` of the state
* ``operating`` -- what operators may ask for, and the answer
* ``status`` -- the cluster at one moment, for a person
* ``metrics`` -- what the controller counts for Prometheus
* ``tables`` -- a table of ``mainspring.toml`` as a struct of configuration
* ``choices`` -- the end of a refusal of an unknown word, and ``durations``, a duration in words
* ``codec`` -- bytes to messages and back

Every message is a frozen, tagged ``msgspec.Struct`` encoded as a MessagePack map. Times are ``int``
nanoseconds; a field named ``*_ns`` without "left" or "duration" in its name is an instant on the
controller's monotonic clock unless its docstring says otherwise.
"""

MOST_TENSORS = 1000
"""Tensors of one message, so inputs of a request and outputs of a model."""
PROTOCOL_VERSION = 1
"""Version of every conversation; peers that differ are refused when they connect."""
