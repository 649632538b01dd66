"""The demonstration: a zoo of real models served under deadlines on this machine's CPU.

* ``zoo``     -- which models, compiled into a store
* ``load``    -- what the device can do, and the workload at a fraction of it
* ``display`` -- what is shown while it runs and at the end
* ``run``     -- all of it in order
"""
