"""The Open Inference Protocol v2 without a transport: what HTTP and gRPC say in the same words.

* ``datatypes``, ``elements``  -- datatypes by their names here, BYTES elements to slots of bytes and back
* ``json_data``                -- a tensor's ``data`` in JSON to its bytes and back
* ``request``, ``response``    -- bodies with JSON and binary tensors to requests, answers to bodies
* ``compression``              -- gzip and deflate, bounded before anything is inflated
* ``deadlines``, ``priority``, ``versions`` -- what else a request may say, in the ways in which it may
* ``errors``                   -- reason codes to HTTP statuses and gRPC codes
* ``metadata``, ``classification`` -- what servers say of models; top classes of an output

Pure: no clock, no socket. Extensions are those of Triton's documentation, under ``docs/protocol``.
"""
