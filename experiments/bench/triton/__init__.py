"""Mainspring beside a real Triton: the same model, arrivals, deadlines and client, on the same machine.

* ``server``     -- Triton's own program with its Python backend, fetched, set up and started
* ``onnx_model`` -- what Triton runs: ONNX Runtime on one core
* ``subjects``   -- what both serve: models and the requests that are sent to them
* ``load``       -- a client in open loop or closed, the same for both
* ``compare``    -- rates in turns, and the figures: ``make bench-triton``
"""
