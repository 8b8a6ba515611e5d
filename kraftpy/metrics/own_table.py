"""The metrics that Kafka does not have."""

OWN_TABLE = """
# kraftpy's own
kraftpy_info gauge version node_id roles
    1; the labels say what runs.
kraftpy_event_loop_lag_seconds summary
    How much later than planned the event loop runs a timer. All requests of a node wait that long.
    ! The 0.99 quantile is above 0.05.
kraftpy_event_loop_lag_max_seconds gauge
    The longest lag of the event loop in the last minute.
    ! Above 0.5.
kraftpy_incidents_total counter
    Unexpected errors that the node survived.
    ! It grows: the log says what happened.
kraftpy_log_sync_rounds_total counter log_directory
    Rounds of syncs, each of which served all that waited for the disk.
kraftpy_log_sync_waiting gauge log_directory
    Requests that wait for a sync now.
kraftpy_log_sync_seconds summary
    Duration of a round of syncs.
    ! The 0.99 quantile is above 1: the disk is too slow.
kraftpy_sent_bytes_total counter
    Bytes of answers to clients.
kraftpy_sendfile_bytes_total counter
    The part of them that went from the page cache to the socket without a copy.
kraftpy_sendfile_share gauge
    Share of sent bytes that went by sendfile since the start; 0 on connections with TLS.
kraftpy_request_memory_bytes gauge
    Memory that requests hold now (queued.max.request.bytes bounds it).
    ! Near its limit: connections wait for memory.
kraftpy_metadata_journal_entries gauge
    Entries of the metadata log that are in the journal, after the snapshot.
kraftpy_metadata_journal_bytes gauge
    Bytes of the metadata journal's file.
kraftpy_metadata_journal_unsynced_entries gauge
    Entries of the metadata log that are not synced yet.
    ! It stays above 0 for seconds: the disk of the first log directory hangs.
kraftpy_metadata_applied_index gauge
    The newest entry of the metadata log that this node has applied.
kraftpy_metadata_acted_index gauge
    The newest entry that this node has acted on.
    ! It stays behind the applied one for minutes.
kraftpy_scrape_seconds summary
    Processor time that collecting a page of metrics took.
kraftpy_scrape_longest_slice_seconds gauge
    The longest processor time for which a page has held the event loop without a pause, since the start.
    ! Above 0.05.
kraftpy_client_metrics_instances gauge
    Client instances that push metrics (KIP-714).
kraftpy_client_metrics_held_bytes gauge
    Memory of their last values.
kraftpy_client_metrics_pushes_total counter
    Pushes of clients.
kraftpy_client_metrics_throttled_total counter
    Requests of clients that came too early.
    ! It grows fast: a client ignores the interval of its subscription.
kraftpy_client_metrics_unknown_subscriptions_total counter
    Pushes for a subscription that has changed: the client asks for the new one.
kraftpy_client_metrics_unreadable_total counter
    Pushes that could not be read.
    ! It grows: the log says whose.
kraftpy_client_metrics_left_out gauge
    Values of clients that are too many to be shown.
    ! Above 0: narrow the subscriptions.
kraftpy_client_metrics_forwarded_total counter
    Pushes that the collector of kraftpy.telemetry.otlp.endpoint took.
kraftpy_client_metrics_lost_total counter
    Pushes that it did not take.
    ! It grows.
kraftpy_collectors_failed_total counter
    Collectors whose metrics were left out of a page because of an error.
    ! It grows: the log says why.
"""
