"""The Open Inference Protocol over gRPC: any of its clients, Triton's among them, can talk to the gateway.

* ``proto/``       -- the protocol's messages; ``descriptors`` is made of them by ``compile_protos``
* ``messages``     -- the messages as Python classes, in a pool of their own
* ``wire``         -- tensors in and out of an encoded message without a copy
* ``requests``, ``contents``, ``deadlines``, ``taking`` -- from a message to what the request table takes
* ``access``       -- who calls, and whether a token lets it pass
* ``answers``, ``status`` -- from an outcome to a message, or to how the call ends
* ``inference``    -- ModelInfer and ModelStreamInfer; ``peers``: whose calls these are
* ``control``, ``settings``, ``health`` -- all other calls
* ``server``       -- grpc.aio with its limits
"""
