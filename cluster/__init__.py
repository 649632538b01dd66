"""The state of the cluster: models, workers, pages, executors' timelines, estimates, queues. Pure."""
