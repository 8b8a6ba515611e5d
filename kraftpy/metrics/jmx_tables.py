"""The metrics that Kafka shows by JMX, with the names that the JMX exporter's usual rules give them (decision 48)."""

JMX_TABLE = """
# Throughput, by topic (kafka.server:type=BrokerTopicMetrics)
kafka_server_brokertopicmetrics_bytesin_total counter topic?
    Bytes of batches from clients and coordinators, appended by leaders. Without `topic`: over all topics, as all these.
kafka_server_brokertopicmetrics_messagesin_total counter topic?
    Records in these batches.
kafka_server_brokertopicmetrics_bytesout_total counter topic?
    Bytes of records sent to consumers.
kafka_server_brokertopicmetrics_bytesrejected_total counter topic?
    Bytes of batches that were refused because they are too large.
    ! It grows: a producer's batches do not fit max.message.bytes.
kafka_server_brokertopicmetrics_totalproducerequests_total counter topic?
    Batches to append, one for each partition of a Produce request.
kafka_server_brokertopicmetrics_totalfetchrequests_total counter topic?
    Partitions in answers to Fetch, of consumers and followers.
kafka_server_brokertopicmetrics_totalsharefetchrequests_total counter topic?
    Partitions read for share groups.
kafka_server_brokertopicmetrics_failedproducerequests_total counter topic?
    Batches that were refused for reasons other than a stale client's, such as NOT_ENOUGH_REPLICAS.
    ! It grows.
kafka_server_brokertopicmetrics_failedfetchrequests_total counter topic?
    Reads that failed for reasons other than a stale client's.
    ! It grows.
kafka_server_brokertopicmetrics_replicationbytesin_total counter
    Bytes of batches copied from leaders.
kafka_server_brokertopicmetrics_replicationbytesout_total counter
    Bytes of records sent to followers.
kafka_server_brokertopicmetrics_producemessageconversions_total counter
    Always 0: records are never converted to another format.
kafka_server_brokertopicmetrics_fetchmessageconversions_total counter
    Always 0: records are never converted to another format.

# Replicas (kafka.server:type=ReplicaManager, kafka.cluster:type=Partition)
kafka_server_replicamanager_leadercount gauge
    Partitions that this broker leads.
    ! Far from that of the other brokers: run a preferred election.
kafka_server_replicamanager_partitioncount gauge
    Replicas on this broker.
kafka_server_replicamanager_offlinereplicacount gauge
    Replicas of this broker that cannot be used, because their directory failed or they could not be opened.
    ! Above 0.
kafka_server_replicamanager_underreplicatedpartitions gauge
    Partitions led here with a replica that is not in sync.
    ! Above 0 for longer than a restart takes.
kafka_server_replicamanager_underminisrpartitioncount gauge
    Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused.
    ! Above 0.
kafka_server_replicamanager_atminisrpartitioncount gauge
    Partitions led here with exactly min.insync.replicas in sync: one failure more stops acks=all.
    ! Above 0 for long.
kafka_server_replicamanager_reassigningpartitions gauge
    Partitions led here that are being moved.
kafka_server_replicamanager_produceridcount gauge
    Idempotent producers that the partitions on this broker remember.
kafka_server_replicamanager_isrexpands_total counter
    Changes by which a leader's in-sync replicas grew.
kafka_server_replicamanager_isrshrinks_total counter
    Changes by which a leader dropped in-sync replicas that had fallen behind. As in Kafka, those that the controller
    drops because their broker was fenced do not count.
    ! It grows: followers are too slow.
kafka_server_replicamanager_failedisrupdates_total counter
    Changes of in-sync replicas that the controller refused.
kafka_cluster_partition_replicascount gauge topic partition
    Replicas of a partition that is led here.
kafka_cluster_partition_insyncreplicascount gauge topic partition
    Its replicas in sync.
kafka_cluster_partition_underreplicated gauge topic partition
    1 if some replica is not in sync.
kafka_cluster_partition_underminisr gauge topic partition
    1 if fewer than min.insync.replicas are in sync.
    ! 1: acks=all is refused.
kafka_cluster_partition_atminisr gauge topic partition
    1 if exactly min.insync.replicas are in sync.
kafka_cluster_partition_laststableoffsetlag gauge topic partition
    Offsets between the last stable offset and the high watermark: what open transactions keep from read_committed.
    ! It grows for hours: a transaction hangs.
kafka_server_replicafetchermanager_maxlag gauge clientId
    The largest lag of a replica that follows, in records.
    ! It grows steadily: the follower is too slow.
kafka_server_replicafetchermanager_failedpartitionscount gauge clientId
    Partitions whose last fetch from the leader failed, and that wait before the next.
    ! Above 0 for long.
kafka_server_fetcherlagmetrics_consumerlag gauge clientId topic partition
    Lag of a replica that follows, in records.
kafka_server_fetchsessioncache_numincrementalfetchsessions gauge
    Fetch sessions (KIP-227).
kafka_server_fetchsessioncache_numincrementalfetchpartitionscached gauge
    Partitions that they remember.

# Logs (kafka.log)
kafka_log_log_size gauge topic partition
    Bytes of the segments of a replica on this broker.
kafka_log_log_numlogsegments gauge topic partition
    Segments of a replica on this broker.
kafka_log_log_logstartoffset gauge topic partition
    The first offset of a replica on this broker.
kafka_log_log_logendoffset gauge topic partition
    The offset of its next record.
kafka_log_logmanager_offlinelogdirectorycount gauge
    Log directories that have failed.
    ! Above 0: a disk failed.
kafka_log_logmanager_logdirectoryoffline gauge logDirectory
    1 if the directory has failed.
    ! 1.

# Requests (kafka.network:type=RequestMetrics)
kafka_network_requestmetrics_requests_total counter request version
    Requests of an API, whose answer was sent. Version -1 stands for all that are not served.
kafka_network_requestmetrics_errors_total counter request error
    Error codes in answers; NONE is one too. One answer may have several.
    ! Codes other than NONE grow: the code says why.
kafka_network_requestmetrics_totaltimems summary request
    Milliseconds from a request's arrival to the end of its answer. Quantiles: the last five minutes. The first 64
    requests of a version are measured, and then every sixteenth, which stands for sixteen.
    ! The 0.99 quantile of Produce rises: look at its parts below. Fetch waits for records, so it may be long.
kafka_network_requestmetrics_requestqueuetimems summary request
    Until it is served: behind other requests of its connection, or while the event loop is busy.
    ! It rises: the node is overloaded.
kafka_network_requestmetrics_localtimems summary request
    Processor time on the event loop.
kafka_network_requestmetrics_remotetimems summary request
    Waiting: for followers, for a sync of the disk, for records, for another thread.
    ! Produce: followers or disks are slow.
kafka_network_requestmetrics_throttletimems summary request
    How long a quota silenced the connection afterwards.
kafka_network_requestmetrics_responsequeuetimems summary request
    Always 0: an answer is sent as soon as it is ready.
kafka_network_requestmetrics_responsesendtimems summary request
    Until the socket had taken the answer.
    ! It rises: clients or the network are slow.
kafka_network_requestchannel_requestqueuesize gauge
    Requests that have arrived and wait to be served.
    ! Hundreds for long.
kafka_network_requestchannel_responsequeuesize gauge
    Connections whose client does not read its answers at the moment.
kafka_server_delayedoperationpurgatory_purgatorysize gauge delayedOperation
    Requests of an API that wait now: Produce for followers or the disk, Fetch for records.
kafka_network_socketserver_networkprocessoravgidle_percent gauge networkProcessor
    Share of time in which the event loop had nothing to do, over the last minute: 1 is idle.
    ! Below 0.3: the node is near its limit.
kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent gauge
    The same: one loop serves the network and the requests.
kafka_network_socketserver_memorypoolused gauge
    Bytes of queued.max.request.bytes that requests hold.
kafka_network_socketserver_memorypoolavailable gauge
    Bytes of it that are free.
kafka_server_socket_server_metrics_connection_count gauge listener networkProcessor
    Connections of clients and other brokers, by listener.
    ! Near max.connections.
kafka_server_socket_server_metrics_connection_creation_total counter listener networkProcessor
    Connections that were accepted.
kafka_server_socket_server_metrics_connection_close_total counter listener networkProcessor
    Connections that were closed.
kafka_server_socket_server_metrics_connections_software gauge clientSoftwareName clientSoftwareVersion listener
    Connections by the software that they say they are of (KIP-511). The hundred that have most are named.
kafka_server_socketservermetrics_connections gauge client_software_name client_software_version listener
    The same, with the names of Confluent's rules.

# The controller (kafka.controller; nodes with the role alone)
kafka_controller_kafkacontroller_activecontrollercount gauge
    1 on the active controller.
    ! The sum over all nodes is not 1 for longer than an election takes.
kafka_controller_kafkacontroller_offlinepartitionscount gauge
    Partitions without a leader.
    ! Above 0: they can neither be read nor written.
kafka_controller_kafkacontroller_preferredreplicaimbalancecount gauge
    Partitions that are not led by their first replica.
kafka_controller_kafkacontroller_globaltopiccount gauge
    Topics of the cluster.
kafka_controller_kafkacontroller_globalpartitioncount gauge
    Partitions of the cluster.
kafka_controller_kafkacontroller_activebrokercount gauge
    Registered brokers that are not fenced.
kafka_controller_kafkacontroller_fencedbrokercount gauge
    Registered brokers that are fenced: stopped, or cut off.
    ! Above 0 for longer than a restart takes.
kafka_controller_kafkacontroller_metadataerrorcount gauge
    Entries of the metadata log that this node could not read.
    ! Above 0.
kafka_controller_kafkacontroller_lastappliedrecordoffset gauge
    The newest entry of the metadata log in this node's image.
kafka_controller_kafkacontroller_lastcommittedrecordoffset gauge
    The newest entry of the metadata log that a majority has.
kafka_controller_kafkacontroller_newactivecontrollerscount gauge
    How often this node saw a new active controller since its start.
    ! It grows: the quorum is unstable.
kafka_controller_controllerstats_uncleanleaderelections_total counter
    Unclean elections since this node's start: records may have been lost.
    ! Above 0.

# The quorum (kafka.server:type=raft-metrics)
kafka_server_raftmetrics_current_leader gauge
    Id of the quorum's leader; -1 if unknown.
    ! -1 for longer than an election takes.
kafka_server_raftmetrics_current_epoch gauge
    The quorum's term.
    ! It grows: elections follow one another.
kafka_server_raftmetrics_current_vote gauge
    Id of the node that this one voted for in this term; -1 if none.
kafka_server_raftmetrics_current_state gauge current_state
    1, with the node's state in the quorum: leader, follower, candidate, or observer.
kafka_server_raftmetrics_high_watermark gauge
    The newest committed entry of the metadata log.
kafka_server_raftmetrics_log_end_offset gauge
    The newest entry in this node's metadata log.
kafka_server_raftmetrics_log_end_epoch gauge
    The term of that entry.
kafka_server_raftmetrics_number_of_voters gauge
    Voters of the quorum.
kafka_server_raftmetrics_append_records_rate gauge
    Entries a second that this node appended as the quorum's leader, over the last minute.
kafka_server_raftmetrics_fetch_records_rate gauge
    Entries a second that this node took over from the quorum's leader, over the last minute.
kafka_server_raftmetrics_commit_latency_avg gauge
    Mean milliseconds from a command that this node submitted to its decision, over the last minute.
    ! Above 100.
kafka_server_raftmetrics_commit_latency_max gauge
    The longest such time, over the last five minutes.
kafka_server_raftchannelmetrics_outgoing_byte_total counter
    Bytes of frames sent to other nodes over links: the quorum's messages, heartbeats, and metadata.
kafka_server_raftchannelmetrics_incoming_byte_total counter
    Bytes of frames received over links.
kafka_server_raftchannelmetrics_request_total counter
    Frames sent over links; those of the quorum are messages without answers, so they are not told apart.
kafka_server_raftchannelmetrics_response_total counter
    Frames received over links.

# Groups (kafka.server:type=group-coordinator-metrics, kafka.coordinator.group)
kafka_server_group_coordinator_metrics_group_count gauge protocol
    Groups coordinated here, by protocol: classic, consumer, share or streams.
kafka_server_group_coordinator_metrics_consumer_group_count gauge state
    Groups of the consumer protocol, by state.
kafka_server_group_coordinator_metrics_num_partitions gauge state
    Partitions of __consumer_offsets that are coordinated here: loading, active or failed.
    ! failed is above 0: their groups are unavailable.
kafka_coordinator_group_groupmetadatamanager_numoffsets gauge
    Committed offsets of the groups coordinated here.
kafka_coordinator_group_groupmetadatamanager_numgroups gauge
    Classic groups coordinated here.
kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance gauge
    Those whose members are asked to join again.
    ! Above 0 for minutes: a member does not answer.
kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance gauge
    Those that wait for their leader's assignment.
kafka_coordinator_group_groupmetadatamanager_numgroupsstable gauge
    Those at work.
kafka_coordinator_group_groupmetadatamanager_numgroupsempty gauge
    Those without members.
kafka_coordinator_group_groupmetadatamanager_numgroupsdead gauge
    Those being deleted.

# Share groups (kafka.server:type=SharePartitionMetrics, ShareSessionCache, share-coordinator-metrics)
kafka_server_sharepartitionmetrics_inflightmessagecount gauge group topic partition
    Records that members of a share group hold, or that wait to be delivered again.
    ! Near group.share.partition.max.record.locks: nothing more is handed out.
kafka_server_sharepartitionmetrics_inflightbatchcount gauge group topic partition
    Runs of such records in the same state.
kafka_server_sharesessioncache_sharesessionscount gauge
    Sessions of members of share groups.
kafka_server_sharesessioncache_sharepartitionscount gauge
    Partitions that they remember.
kafka_server_share_coordinator_metrics_num_partitions gauge state
    Partitions of __share_group_state that are coordinated here: loading, active or failed.
    ! failed is above 0.

# Transactions (kafka.server:type=transaction-coordinator-metrics, kafka.coordinator.transaction)
kafka_server_transaction_coordinator_metrics_num_partitions gauge state
    Partitions of __transaction_state that are coordinated here: loading, active or failed.
    ! failed is above 0: their producers cannot go on.
kafka_server_transaction_coordinator_metrics_transactional_id_count gauge
    Transactional ids coordinated here.
kafka_server_transaction_coordinator_metrics_transaction_count gauge state
    Transactional ids coordinated here, by the state of their last transaction.
    ! PrepareCommit or PrepareAbort for minutes: markers cannot be written.

# Quotas (kafka.server:type=Produce, Fetch, Request)
kafka_server_quota_throttle_time gauge resource user? clientId?
    Milliseconds for which a client would have to wait now: above its quota if more than 0. Only clients with quotas.
    ! Above 0: the client is throttled.
kafka_server_quota_rate_limit gauge resource user? clientId?
    The quota that applies to it: bytes a second, or percent of the event loop.

# The node (kafka.server:type=KafkaServer)
kafka_server_kafkaserver_brokerstate gauge
    As in Kafka: 1 starting, 2 recovering, 3 running, 6 stopping.
    ! Not 3 for long.
kafka_server_kafkaserver_linux_disk_read_bytes gauge
    Bytes that this process had the disk read.
kafka_server_kafkaserver_linux_disk_write_bytes gauge
    Bytes that this process had the disk write.
"""
