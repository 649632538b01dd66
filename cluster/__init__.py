"""What is so: models, workers, pages, executors' timelines, estimates, queues. Pure."""
