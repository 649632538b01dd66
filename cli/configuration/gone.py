"""Keys of ``mainspring.toml``, options and verbs that there are no more, and what to do instead.

A number that no operator had a reason to set is a field of the process's struct, with its reason beside it,
and not a key: `FIXED` has these. `MOVED` has keys that another one replaces.
"""

from __future__ import annotations

FIXED: dict[str, tuple[str, ...]] = {
    "cluster": ("restart_delay_ms", "restart_delay_max_ms"),
    "scheduler": (
        *("load_window_ms", "load_capacity_ms", "idle_load_protect_ms", "equal_slack_ms", "max_attempts"),
        *("prepares_in_flight", "open_patience_ms", "open_within_ms"),
    ),
    "controller": (
        *("event_log_segment_bytes", "clock_window_samples", "join_pongs", "burst_messages"),
        *("message_max_bytes", "peer_backlog_messages", "observer_interval_ms", "observer_timeout_ms"),
        *("observer_backlog_bytes", "goodbye_linger_ms"),
    ),
    "gateway": (
        *("metrics_timeout_ms", "access_log_older_files", "max_answer_bytes_per_connection"),
        *("zeromq_handshake_timeout_ms", "zeromq_message_idle_ms", "zeromq_message_timeout_ms"),
        *("zeromq_write_timeout_ms", "http_max_header_bytes", "http_max_pipelined", "http_shed_wait_ms"),
        *("http_header_timeout_ms", "http_body_idle_ms", "http_body_timeout_ms", "http_idle_timeout_ms"),
        *("http_write_timeout_ms", "grpc_max_metadata_bytes", "grpc_backlog_bytes"),
        *("grpc_handshake_timeout_ms", "grpc_keepalive_ms", "grpc_keepalive_timeout_ms"),
        *("grpc_idle_timeout_ms", "reply_backlog_messages", "reply_backlog_bytes"),
        *("input_backlog_messages", "input_backlog_bytes", "controller_backlog_messages"),
        *("hello_interval_ms", "admin_timeout_ms", "max_admin_requests", "token_reload_ms"),
        *("burst_messages", "goodbye_linger_ms"),
    ),
    "worker": (
        *("emulated_seed", "emulated_jitter", "emulated_open_ms", "early_inputs", "early_input_bytes"),
        *("early_input_age_ms", "output_backlog_bytes", "controller_silence_ms", "hello_retry_ms"),
    ),
    "repository": ("prepare_patience_s", "controller_timeout_ms"),
    "console": (
        *("token_reload_ms", "update_interval_ms", "query_share", "slice_ms", "max_pages"),
        *("max_connections", "max_message_bytes", "max_header_bytes", "header_timeout_ms"),
        *("ping_interval_ms", "operate_timeout_ms", "max_operations", "stop_timeout_ms"),
    ),
    "transport": ("handshakes_at_once", "all_handshakes_at_once", "all_handshakes_per_s"),
}
"""Fields of each table's struct that the file can't set."""

MOVED: dict[tuple[str, str], str] = {
    ("scheduler", "refuse"): 'set refuse_wrongly: 0 is what "last" was, and more what "early" was',
    ("scheduler", "max_queue_sizes"): "set max_queue_size in [models.NAME]",
    ("scheduler", "goodput_weights"): "set goodput_weight in [models.NAME]",
    **{
        (table, "secret_file"): "processes of one user on one host need none, others need [cluster] keys"
        for table in ("cluster", "controller", "gateway", "worker", "repository", "console")
    },
}
"""Keys that another one replaces, by table and key."""

OPTIONS: dict[str, str] = {
    "simulate --refuse": "with a SPEC, --set scheduler.refuse_wrongly=0 refuses nothing early",
    "replay --scale": "multiply --rate instead",
    "replay --start": "cut the trace's file instead",
    "replay --cv": "simulate a workload of kind gamma, or replay a trace",
    "replay --think": "simulate a workload of kind closed with think_ms, or send less by --concurrency",
    "models index --ready": "--json says the state of each",
    "models live": "mainspring models --watch shows the same",
    "profile --markdown": "--csv and --json write the table",
    "token new --best-priority": "set best_priority in the line of the token's file",
    "worker --instruction-set": "set [worker] instruction_set in the file of --config",
    "gateway --grace": "set [gateway] grace_ms in the file of --config",
    **dict.fromkeys(("controller --insecure", "worker --insecure"), "beyond this host it needs --keys"),
    **{
        f"{verb} --secret-file": "processes of one user on one host need none, others need --keys"
        for verb in ("controller", "worker", "gateway", "console", "balance", "top", "trace", "explain")
    },
}
"""Options, and verbs of verbs, by how they were typed."""
