"""Metrics in Prometheus' form: what `docs/metrics.md` describes.

* ``series``      -- the counters of one label; pure
* ``families``    -- the gateway's counters as metric families
* ``cluster``     -- the controller's, likewise
* ``exposition``  -- families as text, a piece at a time
* ``server``      -- the endpoint that Prometheus scrapes
"""
