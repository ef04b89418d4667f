"""What the kit relies on in hivemind 1.1.12 beyond what hivemind promises, in one place.

hivemind may change these names in any release, so `pyproject.toml` admits this release only, and
`tests/test_upstream.py` compares each line with the installed one. Before another release is admitted, look at each
line that the test names, and at the workarounds that `tests/test_workarounds_*.py` finds superfluous.

`NAMES` has an entry for each private name that `swarm` or `auth` uses, and for each method of a class of hivemind that
they override, under the class or module of hivemind that defines it. An entry is a declaration without types, and what
the kit does with it. A declaration begins with how the method is used: `def`, `async def` (awaited), `async for` (an
async generator), `async with` (an async context manager), `classmethod`. A name alone is an attribute or a constant.
"""

NAMES: dict[str, dict[str, str]] = {
    # Averaging: overridden by averaging/averagers.py, matchmaking.py, all_reduce.py, own_parts.py,
    # same_answers.py and local_updates.py.
    "averaging.averager.DecentralizedAverager": {
        "def run(self)": "RunAverager lets go of the trainer's memory before",
        "async def _get_current_state_from_host_process(self)": "RunAverager makes one copy at a time",
        "async def _step(self, *, step, future_for_init)": "RunAverager puts its matchmaking in; KeepsTasks holds it",
        "async def _aggregate_with_group(self, group_info, min_vector_size, **kwargs)": (
            "RunAverager says who may reduce, and returns a Group"
        ),
        "async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs)": (
            "RunAverager averages by a Runner"
        ),
        "async for rpc_join_group(self, request, context)": "RunAverager refuses peers that may not take part",
        "async for rpc_aggregate_part(self, stream, context)": "RunAverager refuses peers, and lets early ones wait",
        "async for rpc_download_state(self, _request, _context)": "RunAverager refuses peers that may not have it",
        "async def _declare_for_download_periodically(self)": "RunAverager signs that it has a state to give",
        "_state_updated": "the same: it waits for what the trainer's process says",
        "_matchmaking": "RunAverager replaces it by a MemberMatchmaking at the first step",
        "_outer_pipe": "RunStateAverager calls a method of its own in the averager's process",
        "_p2p": "RunAverager hands it to what it makes; donors.py calls peers by it",
        "_running_groups": "RunAverager finds the Runner of a round there, and lets early parts wait for it",
        "_allreduce_timeout": "RunAverager ends streams that are not read",
        "_averaging_alpha": "RunAverager adds the results with this factor, as hivemind does",
    },
    "p2p.servicer.ServicerBase": {
        "classmethod _get_handle_name(cls, namespace, method_name)": "RunAverager keeps hivemind's names on the wire",
        "_rpc_handlers": "RunAverager and Protocol have hivemind collect the handlers of their classes anew",
        "_stub_type": "the same, for the calls to other peers",
    },
    "averaging.matchmaking.Matchmaking": {
        "def __init__(self, p2p, schema_hash, dht, *, servicer_type, prefix, target_group_size, min_group_size, "
        "min_matchmaking_time, request_timeout, client_mode, initial_group_bits='')": (
            "RunAverager makes a MemberMatchmaking as hivemind makes its own"
        ),
        "_prefix": "MemberMatchmaking takes introductions for these rounds only",
        "was_accepted_to_group": "MemberMatchmaking tells by it which leader has kept this peer",
        "async with looking_for_group(self, step_control)": "MemberMatchmaking looks under the key of its epoch",
        "async def _request_join_group(self, leader)": "MemberMatchmaking follows members only",
        "async def follower_assemble_group(self, leader, msg)": "MemberMatchmaking refuses groups with strangers",
        "async def leader_assemble_group(self)": "MemberMatchmaking notes that this peer leads the group",
        "async def leader_disband_group(self)": "CompletingMatchmaking notes who was missing",
        "lock_request_join_group": "CompletingMatchmaking begins no group while this peer is about to follow another",
        "assembled_group": "the same, once it is there",
        "potential_leaders": "CompletingMatchmaking reads when its search ends",
    },
    "averaging.matchmaking.PotentialLeaders": {
        "declared_expiration_time": "the same",
        "update_triggered": "CompletingMatchmaking has it look as long as a search lasts",
        "past_attempts": "MemberMatchmaking takes a leader out of it that is to be asked once more",
    },
    "averaging.control.StepControl": {
        "def cancel(self)": "CalledOff cancels the round first",
        "_allow_retries": "RunStateAverager ends a round that came too late",
    },
    "averaging.key_manager.GroupKeyManager": {
        "def __init__(self, dht, prefix, initial_group_bits, target_group_size)": "MemberMatchmaking makes its own",
        "async def declare_averager(self, group_key, peer_id, expiration_time, looking_for_group=True)": (
            "SignedKeyManager signs it"
        ),
        "async def get_averagers(self, group_key, only_active)": "the same; it pauses between two looks",
    },
    "averaging.allreduce.AllReduceRunner": {
        "def __init__(self, *, p2p, servicer_type, prefix, group_id, tensors, weight=None, ordered_peer_ids, "
        "peer_fractions, modes=None, sender_timeout=None, reducer_timeout=None, **kwargs)": (
            "RunAverager makes a Runner as hivemind makes its own"
        ),
        "async for run(self)": "Runner tells whose tensors did not count",
        "def _get_peer_stub(self, peer)": "Runner listens to what reducers say; Auditor asks groupmates",
        "def should_delay_results(self, peer_id)": "Runner gives and reads averages while parts are still sent",
        "async for _accumulate_parts_streaming(self, stream, sender_index)": (
            "Runner says what each sender counted for; SameAnswers answers with averages"
        ),
        "async for _generate_input_for_peer(self, peer_index)": "Runner sends it no faster than the peer may",
        "async def _communicate_with_peer(self, peer_id)": (
            "Runner tells which reducer failed; SameAnswers takes over what it has encoded"
        ),
        "async def _ban_sender(self, peer_id)": "Runner tells which sender failed",
        "async def _handle_missing_senders(self)": "Runner waits for each by how long it waits for the others",
    },
    "averaging.partition.TensorPartContainer": {
        "async for iterate_input_parts_for(self, peer_index)": "Parts keeps what is sent, for those who check it",
        "def register_processed_part(self, peer_index, part_index, part)": "Parts refuses results that cannot be right",
        "def register_failed_reducer(self, peer_index)": "Parts cancels what an audit waits for",
        "_input_parts_by_peer": "Parts reads this peer's own values",
        "_outputs_registered_by_peer": "Parts keeps these where a reducer has given nothing",
    },
    "averaging.partition.TensorPartReducer": {
        "async def accumulate_part(self, sender_index, part_index, tensor_part, weight=1.0)": "Reducer replaces it all",
        "def on_sender_failed(self, sender_index)": "the same",
        "def finalize(self)": "the same",
    },
    "optim.grad_averager.GradientAverager": {
        "def schedule_step(self, scheduled_time=None, **kwargs)": "RunAverager introduces this peer to its group",
        "def step(self, weight=None, reset_accumulators=True, control=None, timeout=None, wait=True, **kwargs)": (
            "RunGradientAverager takes the weight from gradients that should not count"
        ),
        "def accumulate_grads_(self, batch_size)": (
            "RunGradientAverager averages over samples; DistanceAverager counts samples only"
        ),
        "_anchor_batch_size": "RunGradientAverager divides by samples in units of the first batch",
        "def load_accumulators_into_averager_(self)": "DistanceAverager averages distances in place of gradients",
        "def reset_accumulated_grads_(self)": "DistanceAverager has no sums of gradients",
        "_accumulators_used_in_step": "DistanceAverager resets it, as hivemind does",
        "_local_accumulators": "RunGradientAverager lets go of them in the averager's process",
    },
    "optim.state_averager.TrainingStateAverager": {
        "def schedule_step(self, scheduled_time=None, **kwargs)": "RunAverager introduces this peer to its group",
        "def get_current_state(self)": "RunStateAverager gives newcomers a copy",
        "def load_state_from_peers(self, **kwargs)": "RunStateAverager takes over only what can be right",
        "def _apply_optimizer_parameters_(self)": "RunStateAverager and peer/snapshot.py load a state",
        "def _update_scheduler(self)": "RunStateAverager goes back, too; CollaborativeOptimizer changes epochs",
        "def _do(self, wait_for_trigger, optimizer_step, zero_grad, averaging_round, averaging_control, grad_scaler, "
        "set_to_none, timeout=None, **kwargs)": "RunStateAverager notes whether the update was made",
    },
    # The optimizer: overridden by averaging/optimizer.py, run_optimizer.py, local_updates.py and progress.py.
    "optim.optimizer.Optimizer": {
        "def step(self, closure=None, batch_size=None, grad_scaler=None)": "both optimizers do more around it",
        "def zero_grad(self, set_to_none=True)": "LocalUpdateOptimizer resets the gradients of its inner optimizer",
        "def load_state_from_peers(self, **kwargs)": "CollaborativeOptimizer gives up when no peer has a state",
        "def shutdown(self)": "CollaborativeOptimizer cancels no round twice",
        "def _make_progress_tracker(self, target_batch_size, **kwargs)": "RunOptimizer has its own",
        "def _make_state_averager(self, **kwargs)": "RunOptimizer has its own",
        "def _make_gradient_averager(self, factory, **kwargs)": "RunOptimizer sets its time-out",
        "def _should_load_state_from_peers(self)": "CollaborativeOptimizer asks for a state less often",
        "def _update_global_epoch(self, grad_scaler)": "CollaborativeOptimizer averages parameters, or catches up",
        "def _maybe_schedule_gradient_averaging(self)": "StandingBy calls it without a batch",
        "def _begin_averaging_gradients(self, grad_scaler)": "CollaborativeOptimizer skips rounds without other peers",
        "def _average_gradients_and_load_into_optimizer(self, maybe_step_control)": (
            "CollaborativeOptimizer keeps the gradient of a failed round, and records each round"
        ),
        "def _load_averaged_gradients_into_optimizer_(self)": "CollaborativeOptimizer calls it after a round",
        "def _tag_along_with_zero_weight(self, control)": "CatchingUp ends it where the peer is to leave",
        "_should_check_synchronization_on_update": "it asks for a check after it has caught up or come back",
    },
    "optim.progress_tracker.ProgressTracker": {
        "def _parse_swarm_progress_data(self, metadata)": "PlausibleProgress believes members, within bounds",
        "should_report_progress": "PlausibleProgress puts an event in its place that wakes seldom",
        "def update_epoch(self, new_epoch=None)": "PlausibleProgress notes when it entered an epoch",
        "def _get_local_progress(self, local_epoch, samples_accumulated)": "PlausibleProgress gives newcomers no vote",
    },
    # Codecs: overridden by averaging/codec.py.
    "compression.base.CompressionBase": {
        "def compress(self, tensor, info, allow_inplace=False)": "the codecs write their own bytes",
        "def extract(self, serialized_tensor)": "the codecs check what strangers send",
        "def estimate_compression_ratio(self, info)": "the codecs say how much they send",
    },
    "compression.base.NoCompression": {
        "def extract(self, serialized_tensor)": "Uncompressed checks what strangers send",
    },
    "compression.floating.Float16Compression": {
        "def compress(self, tensor, info, allow_inplace=False)": "Float16 refuses values that are not finite",
        "def extract(self, serialized_tensor)": "Float16 checks what strangers send",
    },
    "compression.serialization": {
        "_BASE_COMPRESSION_TYPES": "codec.install replaces what hivemind decodes with",
    },
    # The hash table: overridden and replaced by hash_table.py.
    "dht.protocol.DHTProtocol": {
        "async def update_routing_table(self, node_id, peer_id, responded=True)": "Protocol knows each at one place",
        "async def call_find(self, peer, keys)": "the same",
        "async def call_store(self, peer, keys, values, expiration_time, subkeys=None, in_cache=None)": "Protocol "
        "notes who keeps nothing any more",
        "async def rpc_find(self, request, context)": "Protocol answers few keys at once",
        "async def rpc_store(self, request, context)": "Protocol stores what its writer brings",
    },
    "dht.dht": {"DHTNode": "hash_table.install puts Node in its place, whose `node_id` follows from its peer's id"},
    "dht.dht.DHT": {
        "def run(self)": "hash_table.install puts serve in its place",
        "_inner_pipe": "serve reads it by an Inbox",
    },
    "dht.crypto.RSASignatureValidator": {"def validate(self, record)": "hash_table.install remembers its answers"},
    "dht.node.DHTNode": {
        "classmethod create(cls, p2p=None, node_id=None, initial_peers=None, bucket_size=20, num_replicas=5, "
        "depth_modulo=5, parallel_rpc=None, wait_timeout=3, refresh_timeout=None, bootstrap_timeout=None, "
        "cache_locally=True, cache_nearest=1, cache_size=None, cache_refresh_before_expiry=5, cache_on_store=True, "
        "reuse_get_requests=True, num_workers=4, chunk_size=16, blacklist_time=5.0, backoff_rate=2.0, "
        "client_mode=False, record_validator=None, authorizer=None, ensure_bootstrap_success=True, "
        "strict=True, **kwargs)": "Node keeps no copies, and asks a silent peer again soon",
        "async def find_nearest_nodes(self, queries, k_nearest=None, beam_size=None, num_workers=None, "
        "node_to_peer_id=None, exclude_self=False, **kwargs)": "Node asks beside the keys, where nothing lies",
        "async def _call_find_with_blacklist(self, peer_id, keys)": "Node tells a search who has not answered",
    },
    "utils.mpfuture.MPFuture": {
        "_active_futures": "Keeper ends all waits for other processes of a peer that has lost one",
    },
    "utils.timed_storage.TimedStorage": {
        "def store(self, key, value, expiration_time)": "hash_table.install puts keep in its place",
        "expiration_heap": "keep leaves out the notes of what is gone",
        "key_to_heap": "the same",
    },
    # Searches of the hash table: overridden by searches.py, replaced by hash_table.py.
    "dht.node._SearchState": {
        "def add_candidate(self, candidate, source_node_id)": "Search takes in only what has a time",
        "def finish_search(self)": "Search leaves out what cannot be read",
    },
    "dht.node": {
        "_SearchState": "hash_table.install puts Search in its place",
        "DHTProtocol": "the same by Protocol",
        "async def traverse_dht(queries, initial_nodes, beam_size, num_workers, queries_per_call, get_neighbors, "
        "found_callback=None, await_all_tasks=True, visited_nodes=())": "the same by traverse, which ends",
    },
    # Messages: replaced by wire.py.
    "utils.serializer.MSGPackSerializer": {
        "classmethod loads(cls, buf)": "wire.install puts a bounded decoder in its place",
    },
    # The hash table and its identity: used by auth/ and peer/dry_run.py.
    "utils.auth.TokenAuthorizerBase": {
        "async def get_token(self)": "Members gives the access token of the run's authority",
        "def is_token_valid(self, access_token)": "Members believes the run's authority",
        "def does_token_need_refreshing(self, access_token)": "Members knows when a newer one has come",
        "async def refresh_token_if_needed(self)": "Members renews in the background",
        "async def validate_request(self, request)": "Members hears the clock of each caller",
        "async def validate_response(self, response, request)": "Members hears the clock of each peer that answers",
        "_MAX_CLIENT_SERVICER_TIME_DIFF": "Members answers pings from clocks that differ by more",
    },
    "utils.crypto.RSAPrivateKey": {
        "_private_key": "Identity loads a key from a file",
    },
    "dht.validation.RecordValidatorBase": {
        "def validate(self, record)": "TokenValidator and RunRecords say what may be stored",
        "def merge_with(self, other)": "RunRecords has the keys of all of its kind",
        "priority": "TokenValidator and RunRecords see a record before the regular expressions of signatures do",
    },
    "p2p.p2p_daemon_bindings.datastructures.PeerID": {
        "def __init__(self, peer_id_bytes)": "wire.install puts name_peer before it, which refuses what is too long",
    },
    "p2p.p2p_daemon.P2P": {
        "receive_raw_data": "wire.install puts a bounded one in its place",
        "async def _add_protobuf_stream_handler(self, name, handler, input_protobuf_type, max_prefetch=5, "
        "balanced=False)": "calls.install limits how many streams are open",
        "_child": "first_peers.py ends the hash table with p2pd",
        "_client": "dry_run.py, first_peers.py and kits.py dial one first peer",
    },
    "p2p.p2p_daemon_bindings.control.ControlClient": {
        "async def _handle_persistent_request(self, call_id, request)": "calls.install limits and forgets short calls",
        "_handler_tasks": "the same",
        "_pending_messages": "the same: it says so to the caller",
        "async def _ensure_persistent_conn(self)": "calls.install makes it hear of calls that were given up",
        "_pending_calls": "the same",
    },
    "p2p.p2p_daemon_bindings.p2pclient.Client": {
        "async def connect(self, peer_id, maddrs)": "the same",
    },
}
