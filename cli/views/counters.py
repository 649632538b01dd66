"""The meaning of a cluster's counters, for an operator: each name, what happened, and what to do about it.

The controller, the gateways and the workers count what they could not use or deliver; ``mainspring status``
and docs/operations.md show it. ``python -m mainspring.cli.views.counters`` prints that page's tables.
"""

from __future__ import annotations

NOTHING = "nothing"
VERSIONS = "install the same release on every machine"
SENDER = "find who sends it: a program of your own, or something else that uses the port"
SLOWER = "look at that process's machine: CPU, memory, network"
REPORT = "look at the log and report it: it is a bug"

COUNTERS: dict[str, tuple[str, str]] = {
    # Requests at the gateway.
    "submitted": ("requests that passed the gateway's checks", NOTHING),
    "answered": ("of these, answered with outputs", NOTHING),
    "refused": ("of these, answered with a reason", "see the reasons that clients get"),
    "abandoned": ("of these, given up because their client had gone", NOTHING),
    "resubmitted": ("requests dispatched again because their worker was lost", "see why workers leave"),
    "cache_hits": ("requests answered from the prediction cache", NOTHING),
    "cache_misses": ("requests that were not in the prediction cache", NOTHING),
    "cache_stored": ("outputs that the prediction cache took", NOTHING),
    "cache_evicted": ("of these, given up for others", "if hits are few, raise cache_bytes of [gateway]"),
    "cache_dropped": ("of these, given up with their model", NOTHING),
    "sequences": ("sequences that have a state at the gateway now", "max_sequences of [gateway] bounds it"),
    "sequence_bytes": (
        "bytes that are set aside for their states now",
        "max_sequence_bytes of [gateway] bounds it",
    ),
    "sequences_begun": ("sequences that were begun", NOTHING),
    "sequences_ended": ("of these, ended by a request", NOTHING),
    "sequences_idle": (
        "of these, dropped because no request came for too long",
        "have clients end their sequences; sequence_idle_ms of [gateway] is how long they may be silent",
    ),
    "sequences_dropped": (
        "of these, dropped because a start got no outputs, or with their model",
        "see the reasons that clients get",
    ),
    # Feedback for applications, in rows.
    "feedback_joined": ("rows of feedback that an application has learnt from", NOTHING),
    "feedback_late": (
        "rows whose answer was not kept any more",
        "tell what came true sooner, or have fewer answers wait",
    ),
    "feedback_duplicate": ("rows for which there was feedback before", "tell it once"),
    "feedback_unknown": (
        "rows of answers that this gateway never gave",
        "tell the gateway that answered, by the answer's query_id",
    ),
    "policy_failures": (
        "calls of an application's policy that raised: the first member answered, and nothing was learnt",
        "mend the class that its key policy names",
    ),
    # What clients do.
    "unknown_clients": ("messages before a hello, as after a gateway's restart", NOTHING),
    "bad_messages_from_clients": ("invalid messages from clients", SENDER),
    "replies_to_clients_that_left": ("replies whose client had gone", NOTHING),
    "replies_to_slow_readers": (
        "replies dropped because their client does not read",
        "have that client read, or ask for less",
    ),
    # What crosses on the way; seen at the gateway.
    "traces_left_out": ("requests that were to be traced, beyond trace_max_per_s of [gateway]", NOTHING),
    "access_log_lines_dropped": (
        "lines that the access log lacks, for want of room on the disk, or because it is too slow",
        "make room; access_log_sample_ratio of [gateway] makes it shorter",
    ),
    "withdrawn_inputs": ("dispatches of requests that were answered already", NOTHING),
    "late_rejections": ("rejections of requests that were answered already", NOTHING),
    "late_outputs": (
        "outputs for requests that were answered already, most often by a time-out",
        "if it grows with timed_out: " + SLOWER,
    ),
    "unexpected_outputs": ("outputs of an action that this gateway took no part in", SENDER),
    "bad_outputs": ("outputs of another size than the model's", "compile the model again on every machine"),
    "bad_dispatches": ("dispatches that contradict themselves", VERSIONS),
    "bad_models": ("models whose signature makes no sense", "compile them again"),
    "bad_worker_addresses": (
        "workers whose data address is not an address",
        "correct data_address or data_host there",
    ),
    "controller: sent to no address": (
        "greetings of a controller to another one at an invalid address",
        "correct [shards] controllers",
    ),
    "worker_names_taken_twice": (
        "workers of several controllers with one name and different addresses",
        "name the workers of a cluster differently, whichever controller they have",
    ),
    "wrong_shard": (
        "welcomes by a controller that is another shard than this gateway has it as",
        "give gateways and controllers the same [shards], in the same order",
    ),
    "bad_shard_maps": (
        "maps of models to shards that can't be used, or are not the first controller's",
        "give gateways and controllers the same [shards]",
    ),
    "old_shard_maps": ("maps older than this gateway's, told by a first controller that restarted", NOTHING),
    "bad_messages_from_controller": ("invalid messages from the controller", VERSIONS),
    "bad_messages_from_workers": (
        "messages from workers that are invalid, or name outputs that are not there",
        VERSIONS,
    ),
    "bad_framing_from_controller": (
        "connections to the controller's address that spoke another framing",
        VERSIONS,
    ),
    "bad_framing_from_workers": (
        "the same of workers, or a frame beyond max_message_bytes of [gateway]",
        VERSIONS,
    ),
    "refused_by_controller": ("messages that the controller could not use", VERSIONS),
    "unsent_to_controller": (
        "messages with no connection to the controller or no room for them; requests are sent again",
        "look whether the controller runs",
    ),
    "unsent_to_workers": (
        "inputs for a worker that is gone, or does not take them; their requests are tried again",
        "look at the worker",
    ),
    "front_end_failures": ("outcomes that the gateway itself failed to hand to their clients", REPORT),
    "late_admin_replies": ("answers about status or models that came after 10 s", SLOWER),
    # The controller and its peers.
    "unknown_session": ("messages of peers that had not said hello, or were dropped", NOTHING),
    "protocol_mismatch": ("hellos or welcomes of another protocol version", VERSIONS),
    "bad_message": ("invalid messages to the controller", SENDER),
    "bad_framing": ("connections that sent no messages at all, or one beyond 64 MiB", SENDER),
    "handshakes_refused": (
        "connections closed before their handshake of TLS or CURVE: their host began more than 256 at once "
        "and 32 a second, or all hosts more than 1,024 and 128",
        SENDER + "; clients should keep their connections",
    ),
    "name_taken": ("hellos under a name that a newer process has", "give each worker a name of its own"),
    "clock_stepped": (
        "steps of a peer's clock; a worker whose clock stepped by more than 1 ms had to join again",
        "see which one in the controller's log; look whether its machine was suspended or restored",
    ),
    "bad_page_size": ("workers with another page size", VERSIONS),
    "unreachable": (
        "hellos of a worker or gateway, where that gateway could not connect to that worker's address",
        "start the worker with --data-address tcp://HOST:*, and --data-host if others name it otherwise",
    ),
    "too_many_peers": (
        "hellos beyond max_peers, or consoles' beyond max_observers, of [controller]",
        "raise it",
    ),
    "observer_too_slow": (
        "consoles that were cut off because they do not read",
        "nothing",
    ),
    "bad_pong": ("answers to pings that were never sent", VERSIONS),
    "peer_silent": ("peers that were silent for heartbeat_timeout_ms", SLOWER),
    "peer_gone": ("messages to peers whose connection had ended", "see their logs for why they left"),
    "peer_too_slow": ("messages to peers that do not read", SLOWER),
    "worker_gone": ("actions for a worker that had just left", NOTHING),
    "provider_gone": ("orders to a provider that had just left; it is told when it is back", NOTHING),
    "gateway_gone": ("requests whose gateway had left", NOTHING),
    "bad_query": ("queries whose steps or pieces make no sense", VERSIONS),
    "foreign_request": ("requests numbered for a session that is over", NOTHING),
    "stale_result": ("results of actions of a session that is over", NOTHING),
    "bad_result": ("results that can't be true", "look at that worker's clock and log"),
    "not_loggable": ("records with numbers beyond 64 bits, left out of the event log", SENDER),
    "scheduler_error": ("events that the scheduler failed on", REPORT),
    "internal_error": ("messages that the controller failed on", REPORT),
    "event log off": ("records that were not written, and why", "make room, then restart the controller"),
    # Workers; their names stand before these.
    "controller: undecodable": ("invalid messages from the controller", VERSIONS),
    "controller: other protocol": ("welcomes in another protocol version", VERSIONS),
    "controller: action before welcome": ("actions of a session that is over", NOTHING),
    "controller: unreachable": ("messages with no connection to the controller", NOTHING),
    "gateway: undecodable": ("invalid messages from gateways", SENDER),
    "gateway: input without action": (
        "inputs whose action ended, never came, or did not come in 2 s",
        "if it grows: " + SLOWER,
    ),
    "gateway: unusable input": (
        "inputs of another size than the model's, or no longer in the gateway's memory where it says",
        VERSIONS,
    ),
    "outputs lost on the device": (
        "outputs that a GPU did not bring back to the host; their requests are tried again",
        "look at the worker's log and `mainspring doctor`",
    ),
    "gateway: gone before its output": ("outputs whose gateway was cut off; tried again", NOTHING),
    "gateway: reads too slowly": (
        "outputs dropped because their gateway does not read; its requests time out",
        "look at the gateway's machine",
    ),
    "gateway: connection ended": (
        "gateways that left, or sent a frame beyond max_message_bytes of [worker]",
        "if gateways stay up: give max_message_bytes of [gateway] at most the workers' value",
    ),
}


def explain(name: str) -> tuple[str, str]:
    """Return what a counter of the cluster's status means and what to do; empty texts if it is not known."""
    if name in COUNTERS:
        return COUNTERS[name]
    # "event log off: why", or "worker-0: reason".
    head, _, rest = name.partition(": ")
    return COUNTERS.get(head) or COUNTERS.get(rest) or ("", "")


def counters_table() -> str:
    """Return docs/operations.md's tables: one for each common remedy, and one for the other counters."""
    common = [VERSIONS, SENDER, SLOWER, REPORT, NOTHING]
    tables = []
    for said in common:
        rows = [f"| `{name}` | {meaning} |" for name, (meaning, remedy) in COUNTERS.items() if remedy == said]
        tables.append("\n".join([f"To do: {said}.", "", "| counter | what it counts |", "|---|---|", *rows]))
    rest = {name: texts for name, texts in COUNTERS.items() if texts[1] not in common}
    rows = [f"| `{name}` | {meaning} | {remedy} |" for name, (meaning, remedy) in rest.items()]
    tables.insert(0, "\n".join(["| counter | what it counts | what to do |", "|---|---|---|", *rows]))
    return "\n\n".join(tables)


if __name__ == "__main__":
    print(counters_table())
