"""The state of the cluster by its event stream: a pure reducer of its records, without clock, socket or file.

`view.View` is handed every record in order and holds the state of the moment and some minutes of history;
`console.queries` answer from it. The same view shows a live cluster and a recorded log.
"""
